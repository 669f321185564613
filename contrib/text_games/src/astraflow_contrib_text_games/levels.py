"""Prompt source ``game_levels``: all levels of a game that can be won, in an order that a seed decides."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from hashlib import blake2b

from astraflow_contrib_text_games.config import LevelsConfig
from astraflow_contrib_text_games.game import halvings
from astraflow_core.errors import PromptError
from astraflow_core.types import ComponentContext, Prompt

KEY_DOOR_TURNS = 6
Level = dict[str, int]


class GameLevels:
    """Levels as ``data["level"]``. Their split depends on nothing but the level, so the splits are disjoint whatever the
    seeds and sizes."""

    def __init__(self, config: LevelsConfig, context: ComponentContext) -> None:
        held_out = config.split == "held_out"
        made = _key_door(config) if config.game == "key_door" else _binary_search(config)
        levels = [level for level in made if is_held_out(config.game, level) == held_out]
        random.Random(config.seed).shuffle(levels)
        wanted = len(levels) if config.size is None else config.size
        if not levels or wanted > len(levels):
            raise PromptError(
                f"prompt source 'game_levels': split {config.split!r} of {config.game} has {len(levels)} levels with "
                f"these keys, fewer than size = {wanted or 1}"
            )
        self._game, self._levels = config.game, levels[:wanted]

    def __len__(self) -> int:
        return len(self._levels)

    def __getitem__(self, index: int) -> Prompt:
        if not 0 <= index < len(self):
            raise IndexError(f"level {index} of {len(self)}")
        level = self._levels[index]
        return Prompt(_text(self._game, level), {"level": dict(level)})


def is_held_out(game: str, level: Level) -> bool:
    """Whether a level belongs to the held-out fifth, whatever its number of turns."""
    text = _text(game, {key: value for key, value in level.items() if key != "turns"})
    return blake2b(text.encode(), digest_size=8).digest()[0] % 5 == 0


def _text(game: str, level: Level) -> str:
    return " ".join([game, *(f"{key}={value}" for key, value in sorted(level.items()))])


def _key_door(config: LevelsConfig) -> Iterator[Level]:
    turns = config.turns or KEY_DOOR_TURNS
    for player, key, door in itertools.permutations(range(config.squares), 3):
        if abs(player - key) + 1 + abs(key - door) + 1 <= turns:
            yield {
                "squares": config.squares,
                "player": player,
                "key": key,
                "door": door,
                "turns": turns,
            }


def _binary_search(config: LevelsConfig) -> Iterator[Level]:
    turns = config.turns or halvings(config.highest)
    for number in range(1, config.highest + 1):
        yield {"highest": config.highest, "number": number, "turns": turns}
