"""The environments ``textarena`` and ``textarena_players``."""

from __future__ import annotations

import random

from astraflow_contrib_textarena.config import TextArenaConfig, TextArenaPlayersConfig
from astraflow_contrib_textarena.game import TextArenaGame
from astraflow_core.types import Action, ComponentContext, Observation, Outcome, Prompt
from astraflow_environments.tasks import seed_of


class OnePlayerGame:
    """A game of TextArena (https://github.com/LeonGuertler/TextArena) for one player, which earns at the end what the game
    gives."""

    def __init__(self, config: TextArenaConfig, context: ComponentContext) -> None:
        self._play = _Play(config, 1, "textarena")

    def reset(self, task: Prompt, seed: int) -> Observation:
        """Begin a game with ``data["seed"]`` of the prompt, or one derived from ``seed``."""
        self._play.begin(task, seed)
        return self._play.asked(0.0)

    def step(self, action: Action) -> Observation:
        """One move; the game explains why one is illegal."""
        outcome = self._play.move(action)
        if outcome is None:
            return self._play.asked(0.0)
        rewards, metrics = self._play.ended(outcome)
        return Observation((), rewards[0], outcome, metrics=metrics)

    def close(self) -> None:
        """There is nothing to free."""


class PlayersGame:
    """A game of TextArena for several players, each a role. All earn at the end what the game gives them."""

    def __init__(self, config: TextArenaPlayersConfig, context: ComponentContext) -> None:
        self.roles = tuple(f"player_{number}" for number in range(config.players))
        self._drawn = config.seats == "drawn"
        self._seats = self.roles
        self._play = _Play(config, config.players, "textarena_players")

    def reset(self, task: Prompt, seed: int) -> Observation:
        """Begin a game with ``data["seed"]`` of the prompt, or one derived from ``seed``; it decides the seats, too."""
        drawn = self._play.begin(task, seed)
        self._seats = self.roles
        if self._drawn:
            generator = random.Random(f"seats {drawn}")
            self._seats = tuple(generator.sample(self.roles, len(self.roles)))
        return self._play.asked(0.0, self._seats)

    def step(self, action: Action) -> Observation:
        """One move of the role whose turn it is."""
        outcome = self._play.move(action)
        if outcome is None:
            return self._play.asked(0.0, self._seats)
        rewards, metrics = self._play.ended(outcome)
        by_role = dict(zip(self._seats, rewards, strict=True))
        metrics |= {f"{role}_reward": by_role[role] for role in self.roles}
        return Observation((), by_role, outcome, metrics=metrics)

    def close(self) -> None:
        """There is nothing to free."""


class _Play:
    """An episode: a game, and the bound on its turns."""

    def __init__(self, config: TextArenaConfig, players: int, who: str) -> None:
        self._config, self._players, self._who = config, players, who
        self._game = TextArenaGame(config, players, who)
        self._moves = 0
        self._greeted: set[int] = set()

    def begin(self, task: Prompt, seed: int) -> int:
        drawn = seed_of(f"the environment {self._who!r}", task, seed)
        self._game.begin(drawn)
        self._moves = 0
        self._greeted = set()
        return drawn

    def asked(self, reward: float, seats: tuple[str, ...] = ("",)) -> Observation:
        """The observation of the player whose turn it is."""
        player, text = self._game.turn()
        if player not in self._greeted and self._config.instructions:
            text = f"{self._config.instructions}\n{text}"
        self._greeted.add(player)
        return Observation(({"role": "user", "content": text},), reward, role=seats[player])

    def move(self, action: Action) -> Outcome | None:
        """How the episode ended with this move, if it did."""
        self._moves += 1
        if self._game.move(action.text):
            return Outcome.FINISHED
        return Outcome.TRUNCATED if self._moves == self._config.turns else None

    def ended(self, outcome: Outcome) -> tuple[list[float], dict[str, float]]:
        """The rewards by seat, and the metrics. A game that was cut off has no winner."""
        rewards, illegal = [0.0] * self._players, [False] * self._players
        if outcome is Outcome.FINISHED:
            rewards, illegal = self._game.earned()
        return rewards, {"moves": float(self._moves), "lost_by_illegal_move": float(any(illegal))}
