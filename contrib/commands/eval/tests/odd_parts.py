"""Prompts and a workflow whose outcomes are known, whatever the model."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from typing import Any

from astraflow_core.types import Prompt, Trajectory

COUNT = 10


class Numbers:
    """The prompts 0 to 9."""

    def __init__(self, config: Any, context: Any) -> None:
        pass

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Prompt:
        return Prompt(f"number-{index}", {"prompt": str(index), "number": index})


class Odd:
    """By the remainder of the number and five: 0 is always correct, 1 every other time, 2 never; 3 fails, 4 is rejected.
    With ``HANGS_FROM`` in the environment episodes of numbers from that on never end, with ``FAILS`` all fail."""

    def __init__(self, config: Any, context: Any) -> None:
        self._policy = context.run.policies[0]
        self._played: Counter[int] = Counter()

    async def run_episode(self, engines: Any, prompt: Prompt) -> Trajectory | None:
        number = prompt.data.get("number", 0)
        if number >= int(os.environ.get("HANGS_FROM", COUNT)):
            await asyncio.sleep(3600)
        kind = number % 5
        if kind == 3 or "FAILS" in os.environ:
            raise ValueError(f"{number} cannot be played")
        if kind == 4:
            return None
        self._played[number] += 1
        reward = {0: 1.0, 1: float(self._played[number] % 2), 2: 0.0}[kind]
        engine = engines[self._policy]
        tokens = engine.tokenizer.encode(prompt.data["prompt"])
        result = await engine.generate(tokens)
        return Trajectory(
            (engine.sequence(tokens, result),),
            (engine.completion(result),),
            {self._policy: reward},
            {"kind": float(kind)},
        )
