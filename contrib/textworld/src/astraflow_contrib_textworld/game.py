"""A game of TextWorld: its observations, its admissible commands, and its score."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import textworld

from astraflow_core.errors import EnvironmentFailed
from astraflow_environments.tasks import SEEDS

MOST_CHARACTERS = 198
"""Of a command; jericho cuts what is longer."""
_GENERATED = "Game .* is not fully supported"
"""What jericho warns of with each game that it does not know by name, and so with all of TextWorld's."""
_OF_ALL = {
    "e", "east", "get", "i", "inv", "inventory", "l", "look", "n", "north", "pick", "s", "south", "w", "wait", "west", "x", "z",
}  # fmt: skip
"""Verbs of every game of Inform in addition to those that TextWorld names."""
_STATUS = re.compile(r"(\n>)? {9,}-= [^\n]* =-\d+/\d+\s*\Z")
"""The status line, which follows the prompt."""
_BETWEEN = re.compile(r"[^a-z0-9' -]+|\bthen\b")
"""What may end a command and begin the next one."""


class PlayedGame:
    """A game file that is played again and again. :class:`EnvironmentFailed` if the file is no game of TextWorld."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.score = 0
        self.most = 1
        self.won = self.lost = False
        infos = textworld.EnvInfos(admissible_commands=True, score=True, max_score=True)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", _GENERATED)
                self._game = textworld.start(str(file), infos)
        except (OSError, ValueError, KeyError, NotImplementedError) as error:
            raise EnvironmentFailed(
                "game", f"cannot load {file.name}: {type(error).__name__}: {error}"
            ) from error
        self._state: Any = None

    def begin(self, seed: int) -> str:
        """Start anew; the goal and the room in words."""
        self._game.seed(seed % SEEDS)
        self._enter(self._game.reset())
        self.most = max(1, int(self._state.max_score or 0))
        # The banner has no letters.
        lines = self._told().splitlines()
        return _plain(
            "\n".join(line for line in lines if not line.strip() or re.search("[a-z]", line))
        )

    def do(self, text: str) -> str:
        """Carry out a command; what comes of it. :class:`ValueError` says why the game does not have it."""
        self._enter(self._game.step(self._command(text))[0])
        return _plain(self._told())

    @property
    def possible(self) -> list[str]:
        """The commands that TextWorld calls admissible, in order of the alphabet."""
        return list(self._state.admissible_commands or ())

    @property
    def over(self) -> bool:
        """Whether it is won or lost."""
        return self.won or self.lost

    def close(self) -> None:
        """End it."""
        self._game.close()

    def _command(self, text: str) -> str:
        """The command of a text. Only verbs of the game pass: the interpreter knows others, which restart the game or write
        files of a name that the text chooses."""
        if len(text) > MOST_CHARACTERS:
            raise ValueError(f"A command has at most {MOST_CHARACTERS} characters.")
        parts = [part.strip() for part in _BETWEEN.split(text.lower())]
        commands = [" ".join(part.split()) for part in parts if part]
        if len(commands) != 1:
            raise ValueError("Give one command, in plain words.")
        verb = commands[0].partition(" ")[0]
        if verb not in _OF_ALL and verb not in self._state.verbs:
            raise ValueError(
                f"{verb!r} is not a verb of this game: {', '.join(sorted(self._state.verbs))}."
            )
        return commands[0]

    def _enter(self, state: Any) -> None:
        self._state = state
        score = state.score
        if not isinstance(score, int) or not isinstance(state.feedback, str):
            raise EnvironmentFailed("malformed", f"gave the score {score!r:.80}")
        self.score, self.won, self.lost = score, bool(state.won), bool(state.lost)

    def _told(self) -> str:
        return _STATUS.sub("", self._state.feedback)


def _plain(text: str) -> str:
    """Without spaces at ends and empty lines that follow each other."""
    lines = "\n".join(line.strip() for line in text.splitlines())
    return re.sub(r"\n{2,}", "\n", lines).strip()
