"""A game of two roles, for `examples/team.toml`: one sees a digit and gives a hint, the other guesses the digit."""

from __future__ import annotations

import random
from typing import Any

from astraflow_core.types import Action, ComponentContext, Observation, Outcome, Prompt


class Hinting:
    """The hint is the first letter that the `teller` writes; a digit is no hint. Both earn 1 if the `guesser` writes the
    digit, and the `teller` loses a quarter for a hint that is none."""

    capabilities = frozenset({"multi_role", "deterministic"})
    roles = ("teller", "guesser")

    def __init__(self, config: Any, context: ComponentContext) -> None:
        self._digit = ""

    async def reset(self, task: Prompt, seed: int) -> Observation:
        """Draw the digit."""
        self._digit = random.Random(seed).choice("0123456789")
        return _to("teller", self._digit)

    async def step(self, action: Action) -> Observation:
        """A hint, or the guess."""
        if action.role == "guesser":
            right = float(action.text == self._digit)
            rewards = dict.fromkeys(self.roles, right)
            return Observation((), rewards, Outcome.FINISHED, metrics={"right": right})
        hint = action.text[:1]
        if not hint or hint in "0123456789":
            return _to("guesser", "*", -0.25)
        return _to("guesser", hint)

    async def close(self) -> None:
        """There is nothing to free."""


def _to(role: str, text: str, reward: float = 0.0) -> Observation:
    return Observation(({"role": "user", "content": text},), reward, role=role)
