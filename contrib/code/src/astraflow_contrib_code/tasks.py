"""Prompt source ``code_tasks``: small programming tasks made from a seed, with tests that no prompt shows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from typing import Any

import xxhash

from astraflow_contrib_code.config import CodeTasksConfig
from astraflow_contrib_code.operations import Operation, operations
from astraflow_core.errors import PromptError
from astraflow_core.types import ComponentContext, Prompt

_HELD_OUT_TENTHS = 1
_LARGEST = (12, 3)
"""Numbers of every second list are small, so that some come twice."""
_LENGTHS = (4, 8)

Task = tuple[int, ...]
"""Numbers of operations, in order."""


class CodeTasks:
    """``size`` different tasks of a split, chosen and ordered by ``seed``. Which split a task belongs to depends on its
    operations alone. ``data`` has ``prompt``, ``tests`` for the reward ``code_tests`` and a ``solution`` of ours."""

    def __init__(self, config: CodeTasksConfig, context: ComponentContext) -> None:
        self._config, self._operations = config, operations()
        wanted = self._in_order()
        self._tasks = list(wanted if config.size is None else islice(wanted, config.size))
        if len(self._tasks) < (config.size or 1):
            raise PromptError(
                f"prompt source 'code_tasks': split {config.split!r} of steps = {config.steps} has {len(self._tasks)} tasks, "
                f"fewer than size = {config.size or 1}"
            )

    def __len__(self) -> int:
        return len(self._tasks)

    def __getitem__(self, index: int) -> Prompt:
        if not 0 <= index < len(self):
            raise IndexError(f"prompt {index} of {len(self)}")
        task = self._tasks[index]
        steps = [self._operations[number] for number in task]
        name = f"{self._config.kind}:{'-'.join(map(str, task))}"
        ask, solution = _FORMS[self._config.kind]
        given = _inputs(name, self._config.tests + 1)
        shown, *hidden = (self._test(numbers, _result(steps, numbers)) for numbers in given)
        listed = "\n".join(f"{at}. {step.words}" for at, step in enumerate(steps, 1))
        prompt = ask.format(steps=listed, example=_description(shown))
        code = "\n".join(step.code for step in steps)
        return Prompt(name, {"prompt": prompt, "tests": hidden, "solution": solution(code)})

    def _test(self, numbers: list[int], result: list[int]) -> dict[str, Any]:
        if self._config.kind == "function":
            return {"function": "solve", "arguments": [numbers], "result": result}
        return {
            "input": f"{' '.join(map(str, numbers))}\n",
            "output": f"{' '.join(map(str, result))}\n",
        }

    def _in_order(self) -> Iterator[Task]:
        """Tasks of the split in an order drawn from the seed: a walk through all of them by a step that has no common
        divisor with their number."""
        many = len(self._operations)
        count = many**self._config.steps
        drawn = random.Random(f"{self._config.seed} {self._config.steps}")
        start, stride = drawn.randrange(count), _without_common_divisor(drawn, many, count)
        for at in range(count):
            number = (start + at * stride) % count
            task = tuple(number // many**place % many for place in range(self._config.steps))
            if held_out(task) == (self._config.split == "held_out"):
                yield task


def held_out(task: Task) -> bool:
    """Whether a task belongs to the held-out tenth."""
    name = "-".join(map(str, task))
    return xxhash.xxh3_64_intdigest(f"held out? {name}".encode()) % 10 < _HELD_OUT_TENTHS


def _without_common_divisor(drawn: random.Random, many: int, count: int) -> int:
    while True:
        stride = drawn.randrange(1, count)
        if all(stride % prime for prime in range(2, many + 1) if many % prime == 0):
            return stride


def _inputs(name: str, number: int) -> Iterator[list[int]]:
    """Different lists, the second empty, which programs forget."""
    drawn = random.Random(name)
    for at in range(number):
        length = 0 if at == 1 else drawn.randint(*_LENGTHS)
        largest = _LARGEST[at % 2]
        yield [drawn.randint(-largest, largest) for _ in range(length)]


def _result(steps: list[Operation], numbers: list[int]) -> list[int]:
    for step in steps:
        numbers = step.apply(numbers)
    return numbers


def _description(test: dict[str, Any]) -> str:
    if "function" in test:
        return f"solve({test['arguments'][0]}) returns {test['result']}"
    return f"For the input `{test['input'].strip()}` it prints `{test['output'].strip()}`"


def _as_function(code: str) -> str:
    body = "\n".join(f"    {line}" for line in code.splitlines())
    return f"def solve(numbers):\n    numbers = list(numbers)\n{body}\n    return numbers\n"


def _as_program(code: str) -> str:
    return f"numbers = [int(text) for text in input().split()]\n{code}\nprint(*numbers)\n"


_FUNCTION = (
    "Write a Python function `solve(numbers)` that takes a list of integers and returns a list. It does these steps in this "
    "order:\n{steps}\nFor example, {example}.\nAnswer with one block of Python code."
)
_PROGRAM = (
    "Write a Python program that reads one line of integers separated by spaces and does these steps in this order:\n"
    "{steps}\nIt prints the numbers that are left, separated by spaces, on one line.\n{example}.\n"
    "Answer with one block of Python code."
)
_FORMS = {"function": (_FUNCTION, _as_function), "program": (_PROGRAM, _as_program)}
