"""A game of TextArena: what it shows the player whose turn it is, how it handles a reply, and what players earned."""

from __future__ import annotations

import difflib
import importlib
import random
from numbers import Real
from typing import Any

import textarena

from astraflow_contrib_textarena.config import TextArenaConfig
from astraflow_core.errors import EnvironmentFailed, PreflightError
from astraflow_environments.actions import first_tagged

RAW = "-raw"
"""The name of a game without TextArena's own renderings of observations, which repeat the whole history in each."""
SILENT = "It is your turn."
"""Where a game, or the key ``shown``, leaves nothing to show."""


class TextArenaGame:
    """One game, played again and again. :class:`PreflightError` if it cannot be made or has no such number of players."""

    def __init__(self, config: TextArenaConfig, players: int, who: str) -> None:
        self._config, self._players, self._who = config, players, who
        self._game = self._create()
        try:
            self._game.reset(num_players=players, seed=0)
        except AssertionError as error:
            other = (
                ": play it with 'textarena_players' and the workflow 'team'" if players == 1 else ""
            )
            raise self._refused(f"is not played by {players}{other} ({error})") from error
        except OSError as error:
            raise self._refused(f"does not find its data: {error}") from error

    def begin(self, seed: int) -> None:
        """A new game of this seed."""
        # Some games keep what they have drawn, such as the order of a deck, from one reset to the next.
        random.seed(seed)
        try:
            self._game = self._create()
        except (
            PreflightError
        ) as error:  # it was made before: this ends the episode, and not the run
            raise EnvironmentFailed("error", str(error)) from error
        self._game.reset(num_players=self._players, seed=seed)

    def turn(self) -> tuple[int, str]:
        """The player whose turn it is, and the texts that this player has not seen yet. Its own actions are left out,
        since they are in its conversation."""
        player, messages = self._game.get_observation()
        if not isinstance(player, int) or not 0 <= player < self._players:
            raise EnvironmentFailed("malformed", f"says that it is the turn of {player!r:.40}")
        shown = self._config.shown
        lines = [
            f"[{self._name(sender)}] {message}"
            for sender, message, kind in messages
            if not (sender == player and kind.name == "PLAYER_ACTION")
            and (not shown or kind.name.lower() in shown)
        ]
        return player, "\n".join(lines) or SILENT

    def move(self, text: str) -> bool:
        """Make the move of a reply: the content of ``<action>…</action>``, or all of it. Whether the game is over."""
        tagged = first_tagged(text, "action")
        text = text if tagged is None else tagged[1]
        if self._config.brackets and "[" not in text and "]" not in text:
            text = f"[{text.strip()}]"
        done, _ = self._game.step(action=text)
        return bool(done)

    def earned(self) -> tuple[list[float], list[bool]]:
        """What each player has earned, and whether its last move was illegal, when the game is over."""
        rewards, told = self._game.close()
        found = rewards if isinstance(rewards, dict) else {}
        for player in range(self._players):
            if not isinstance(found.get(player), Real):
                raise EnvironmentFailed(
                    "malformed",
                    f"is over and gave the rewards {rewards!r:.80}, of which player {player} has none",
                )
        illegal = [
            bool(told.get(player, {}).get("invalid_move")) for player in range(self._players)
        ]
        return [float(found[player]) for player in range(self._players)], illegal

    def _name(self, sender: int) -> str:
        if sender == textarena.GAME_ID:
            return "GAME"
        return str(self._game.state.role_mapping.get(sender, f"Player {sender}"))

    def _create(self) -> Any:
        known = textarena.envs.registration.ENV_REGISTRY
        module, _, name = self._config.game.removesuffix(RAW).rpartition(":")
        if module:
            self._import(module)
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            hint = (
                f"did you mean {' or '.join(near)}?" if near else "see its registry for the others"
            )
            raise self._refused(f"is not a game of TextArena; {hint}")
        raw = f"{name}{RAW}"
        try:
            return textarena.make(raw if raw in known else name, **self._config.arguments)
        except LookupError as error:
            raise self._refused(
                "needs data of nltk, which it could not fetch: python -m nltk.downloader words averaged_perceptron_tagger_eng"
            ) from error
        except TypeError as error:
            raise self._refused(f"does not take these arguments: {error}") from error
        except (ValueError, AssertionError, ImportError, SyntaxError, OSError) as error:
            raise self._refused(f"cannot be made: {type(error).__name__}: {error}") from error

    def _import(self, module: str) -> None:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise self._refused(f"cannot be made: {error}") from error

    def _refused(self, problem: str) -> PreflightError:
        return PreflightError(f"environment {self._who!r}: {self._config.game} {problem}")
