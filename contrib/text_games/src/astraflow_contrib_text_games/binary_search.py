"""Binary search: a number to find, by guesses; the reply is too low or too high."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from astraflow_contrib_text_games.game import MoveResult, TextGame
from astraflow_environments.actions import tool

_RULES = "I think of a number from 1 to {highest}. Find it in {turns} guesses. {how}"
_HOW = {
    "text": "Reply with one number; I say whether it is too low or too high.",
    "tools": "Call the tool guess; it says whether the number is too low or too high.",
}


class BinarySearch(TextGame):
    """The level has ``highest`` and ``number``. Half of the reward is for what guesses rule out, counted in bits, half for
    the number itself."""

    tools = (
        tool("guess", "Guess the number.", number={"type": "integer", "description": "The guess."}),
    )

    def begin(self, level: Mapping[str, int]) -> str:
        """Set the level up."""
        self._number, self._highest = int(level["number"]), int(level["highest"])
        if not 1 <= self._number <= self._highest or self._highest < 2:
            raise ValueError("number")
        self._low, self._high = 1, self._highest
        if self.terse:
            return f"{self._highest}?"
        how = _HOW[self._config.actions]
        return _RULES.format(highest=self._highest, turns=self.turns, how=how)

    def move(self, word: str) -> MoveResult:
        """A guess."""
        digits = word.strip("?!,;:*")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 9):
            return MoveResult("?" if self.terse else "That is not a number.")
        guess, before = int(digits), self._possible
        if guess == self._number:
            self._low = self._high = guess
            return MoveResult(
                "=" if self.terse else "That is it. You have won.", self._gain(before) + 0.5, True
            )
        if guess < self._number:
            self._low = max(self._low, guess + 1)
        else:
            self._high = min(self._high, guess - 1)
        low = guess < self._number
        said = (
            (">" if low else "<") if self.terse else f"{guess} is too {'low' if low else 'high'}."
        )
        return MoveResult(said, self._gain(before))

    def called(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The word of a call."""
        if name != "guess":
            raise KeyError(name)
        return str(arguments["number"])

    @property
    def state(self) -> str:
        """What is possible still."""
        return f"{self._low}-{self._high}"

    @property
    def _possible(self) -> int:
        return self._high - self._low + 1

    def _gain(self, before: int) -> float:
        return 0.5 * math.log(before / self._possible) / math.log(self._highest)
