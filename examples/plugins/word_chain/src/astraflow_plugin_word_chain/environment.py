"""The environment ``word_chain``."""

from __future__ import annotations

import random

from pydantic import Field

from astraflow_core.config.models import ConfigModel, PositiveInt
from astraflow_core.errors import PromptError
from astraflow_core.types import Action, ComponentContext, Observation, Outcome, Prompt


class WordChainConfig(ConfigModel):
    """``use = "word_chain"``"""

    turns: PositiveInt = Field(4, description="Words to find.")


class WordChain:
    """The first word is drawn from ``data["words"]`` of the prompt, by the seed."""

    def __init__(self, config: WordChainConfig, context: ComponentContext) -> None:
        self._turns, self._used, self._left = config.turns, [""], 0

    async def reset(self, task: Prompt, seed: int) -> Observation:
        """Draw a word."""
        words = task.data.get("words")
        if not words:
            raise PromptError(f"prompt {task.id!r} needs 'words', a list of words to begin with")
        self._used, self._left = [random.Random(seed).choice(words)], self._turns
        return self._says(f"{self._used[0]}. Reply with one word that begins with its last letter.")

    async def step(self, action: Action) -> Observation:
        """Judge a word; a wrong one costs a turn."""
        self._left -= 1
        word = action.text.strip().lower()
        if not word.isalpha() or word in self._used or word[0] != self._used[-1][-1]:
            return self._says("No.")
        self._used.append(word)
        return self._says("Yes.", reward=1 / self._turns)

    async def close(self) -> None:
        """There is nothing to free."""

    def _says(self, text: str, reward: float = 0.0) -> Observation:
        outcome = Outcome.FINISHED if self._left == 0 else None
        state = f"{' '.join(sorted(self._used))} {self._used[-1]} {self._left}"
        return Observation(({"role": "user", "content": text},), reward, outcome, state=state)
