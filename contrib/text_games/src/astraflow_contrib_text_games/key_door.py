"""Key and door: a corridor, a key to take, a door to open with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from astraflow_contrib_text_games.game import MoveResult, TextGame
from astraflow_environments.actions import tool

WORDS = {"l": "left", "r": "right", "t": "take", "o": "open"}
_RULES = (
    "You are in a corridor of {squares} squares: {state} . @ is you, k a key, d a locked door; K is you beside the key, "
    "D you at the door. Take the key, go to the door and open it, in {turns} turns. {how}"
)
_HOW = {
    "text": "Reply with one word: left, right, take or open.",
    "tools": "Call one tool in each turn.",
}


class KeyDoor(TextGame):
    """The level has ``squares``, and ``player``, ``key`` and ``door``, three squares from 0. Half of the reward is for
    the key, half for the door; or with ``step_rewards = "distance"`` every move that shortens the way to the end earns
    its share of that way, and one that lengthens it costs as much."""

    tools = (
        tool(
            "move",
            "Go one square.",
            direction={"type": "string", "enum": ["left", "right"]},
        ),
        tool("take", "Take the key; you have to be on its square."),
        tool("open", "Open the door; you need the key, and have to be on its square."),
    )

    def begin(self, level: Mapping[str, int]) -> str:
        """Set the level up."""
        self._squares = int(level["squares"])
        self._player, self._key, self._door = (int(level[n]) for n in ("player", "key", "door"))
        places = {self._player, self._key, self._door}
        if len(places) < 3 or not places <= set(range(self._squares)):
            raise ValueError("the place of player, key or door")
        self._has_key = self._is_open = False
        self._way = self._moves_needed
        if self.terse:
            return self.state
        how = _HOW[self._config.actions]
        return _RULES.format(squares=self._squares, state=self.state, turns=self.turns, how=how)

    def move(self, word: str) -> MoveResult:
        """left, right, take or open; the first letter is enough."""
        before = self._done
        result = self._move(word)
        if self._config.step_rewards != "distance":
            return result
        return replace(result, progress=self._done - before)

    def _move(self, word: str) -> MoveResult:
        word = WORDS.get(word, word)
        if word in ("left", "right"):
            to = self._player + (1 if word == "right" else -1)
            if not 0 <= to < self._squares:
                return self._result("There is a wall.")
            self._player = to
            return self._result("")
        if word == "take":
            if self._has_key or self._player != self._key:
                return self._result("There is no key here.")
            self._has_key = True
            return self._result("You have the key.", 0.5)
        if word == "open":
            if self._player != self._door:
                return self._result("There is no door here.")
            if not self._has_key:
                return self._result("You need the key.")
            self._is_open = True
            return self._result("The door is open. You have won.", 0.5)
        return self._result("That is no move.")

    def called(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The word of a call."""
        if name == "move":
            return str(arguments["direction"])
        if name not in ("take", "open"):
            raise KeyError(name)
        return name

    @property
    def state(self) -> str:
        """The corridor as a line: without a key in it the player has it."""
        line = ["."] * self._squares
        if not self._has_key:
            line[self._key] = "k"
        line[self._door] = "d"
        line[self._player] = {".": "@", "k": "K", "d": "D"}[line[self._player]]
        return "".join(line)

    @property
    def _done(self) -> float:
        """The share of the way that is behind the player, in steps of 2**-16, so that sums of differences are exact: a game
        that is won earns 1 and not a little less."""
        return round((1 - self._moves_needed / self._way) * 2**16) / 2**16

    @property
    def _moves_needed(self) -> int:
        """The fewest moves with which the game is won from here."""
        if self._is_open:
            return 0
        if self._has_key:
            return abs(self._player - self._door) + 1
        return abs(self._player - self._key) + 1 + abs(self._key - self._door) + 1

    def _result(self, text: str, progress: float = 0.0) -> MoveResult:
        told = self.state if self.terse else f"{text} {self.state} .".strip()
        return MoveResult(told, progress, self._is_open)
