"""Beginnings of programs: a comment says what a function computes, and its expression is missing."""

from __future__ import annotations

from itertools import product
from typing import Annotated, Literal

import xxhash
from pydantic import Field

from astraflow_core.config.models import ConfigModel
from astraflow_core.types import ComponentContext, Prompt

OPERATIONS = [(name, number) for name in "+-*" for number in range(1, 10)]
WORDS = {"+": "plus", "-": "minus", "*": "times"}
ARGUMENTS = (0, 2, -3, 11)
Steps = tuple[tuple[str, int], ...]


class Expressions:
    """Functions of one number in ``steps`` operations; every tenth, by a hash of its steps, is held out. ``data`` has the
    ``prompt``, the ``tests`` of the reward ``code_tests`` and the ``solution``: what completes the prompt."""

    class Config(ConfigModel):
        """``[prompts] use = "expressions:Expressions"``"""

        steps: Annotated[int, Field(ge=1, le=3)] = Field(2, description="Operations of a function.")
        split: Literal["train", "held_out"] = Field(
            "train", description="Nine tenths, or the rest."
        )

    def __init__(self, config: Config, context: ComponentContext) -> None:
        self._tasks = [
            steps
            for steps in product(OPERATIONS, repeat=config.steps)
            if _held_out(steps) == (config.split == "held_out")
        ]

    def __len__(self) -> int:
        return len(self._tasks)

    def __getitem__(self, index: int) -> Prompt:
        steps = self._tasks[index]
        said = ", ".join(f"{WORDS[name]} {number}" for name, number in steps)
        tests = [
            {"function": "f", "arguments": [number], "result": _result(steps, number)}
            for number in ARGUMENTS
        ]
        prompt = f"# n {said}\ndef f(n): return "
        return Prompt(said, {"prompt": prompt, "tests": tests, "solution": expression(steps)})


def expression(steps: Steps) -> str:
    """``steps`` applied to ``n`` from left to right, as Python: a sum has parentheses where it is multiplied."""
    text, is_sum = "n", False
    for name, number in steps:
        text = f"({text})" if name == "*" and is_sum else text
        text, is_sum = f"{text}{name}{number}", name != "*"
    return text


def _result(steps: Steps, number: int) -> int:
    for name, by in steps:
        number = {"+": number + by, "-": number - by, "*": number * by}[name]
    return number


def _held_out(steps: Steps) -> bool:
    return xxhash.xxh3_64_intdigest(repr(steps).encode()) % 10 == 0
