"""The environment ``sample_thing``."""

from __future__ import annotations

import random

from pydantic import Field

from astraflow_core.config.models import ConfigModel, PositiveInt
from astraflow_core.types import Action, ComponentContext, Observation, Outcome, Prompt


class SampleThingConfig(ConfigModel):
    """``[workflow.environment] use = "sample_thing"``"""

    numbers: PositiveInt = Field(20, description="The number to guess is 1 to this.")
    turns: PositiveInt = Field(5, description="Guesses.")


class SampleThing:
    """A number to guess, drawn by the seed; a right guess earns 1."""

    def __init__(self, config: SampleThingConfig, context: ComponentContext) -> None:
        self._numbers, self._turns = config.numbers, config.turns
        self._secret, self._left = 0, 0

    async def reset(self, task: Prompt, seed: int) -> Observation:
        """Draw the number."""
        self._secret = random.Random(seed).randint(1, self._numbers)
        self._left = self._turns
        return self._says(f"Guess my number, 1 to {self._numbers}. Reply with it alone.")

    async def step(self, action: Action) -> Observation:
        """Judge a guess; what is no number costs a turn too."""
        self._left -= 1
        said = action.text.strip()
        if not (said.isascii() and said.isdigit() and len(said) <= 9):
            return self._says("That is not a number.")
        if int(said) == self._secret:
            self._left = 0
            return self._says("Right.", reward=1.0)
        return self._says("Higher." if int(said) < self._secret else "Lower.")

    async def close(self) -> None:
        """There is nothing to free."""

    def _says(self, text: str, reward: float = 0.0) -> Observation:
        outcome = Outcome.FINISHED if self._left == 0 else None
        message = {"role": "user", "content": text}
        return Observation((message,), reward, outcome, state=f"{self._secret} {self._left}")
