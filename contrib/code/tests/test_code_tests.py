"""The reward of programs, in the real sandbox and beside one that a test scripts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astraflow_contrib_code.cases import read_cases, same
from astraflow_contrib_code.config import CodeTestsConfig
from astraflow_contrib_code.programs import last_block
from astraflow_contrib_code.reward import CodeTests
from astraflow_core.errors import WorkflowError
from astraflow_core.types import Completion, Prompt, TrajectoryView
from astraflow_sandbox.code_runner import CodeRunner, ProgramResult, SandboxFailed
from astraflow_sandbox.config import SandboxTable
from astraflow_testing.conformance.subject import context

PATIENT = SandboxTable(cpu_s=2, deadline_s=120, memory_mb=256)
CALLS = [
    {"function": "f", "arguments": [2, 3], "result": [5, 6]},
    {"function": "f", "arguments": [0, 0], "result": [0, 0]},
    {"function": "f", "arguments": [-1, 1], "result": [0, -1]},
    {"function": "f", "arguments": [0.5, 4], "result": [4.5, 2.0]},
]
TEXTS = [{"input": "3\n", "output": "6"}, {"input": "-1\n", "output": "-2  \n\n"}]
CHECK = [{"check": "assert f(1, 2) == (3, 2)"}]
ADDS = "def f(a, b):\n    return a + b, a * b\n"


@pytest.fixture(scope="module")
def runner() -> CodeRunner:
    return PATIENT.runner()


def fenced(code: str) -> str:
    return f"So:\n```python\n{code}\n```\nDone."


def score(runner: CodeRunner, text: str, tests: Any, **keys: Any) -> float:
    reward = CodeTests(CodeTestsConfig(**keys), context("raas", Path("run")), runner)
    completion = Completion("solver", text, np.zeros(1, np.int32), "stop")
    prompt = Prompt("p", {"prompt": "def f(a, b):\n", "tests": tests})
    return asyncio.run(reward.score(TrajectoryView(prompt, (completion,))))


@pytest.mark.parametrize(
    ("code", "passed"),
    [
        (ADDS, 4),
        (f"print('loading')\n{ADDS}\nprint('done')", 4),
        ("def f(a, b):\n    print(a)\n    return [a + b, a * b]", 4),
        ("def f(a, b):\n    assert a\n    return a + b, a * b", 3),
        ("import os\ndef f(a, b):\n    if not a: os._exit(0)\n    return a + b, a * b", 3),
        ("def f(a, b):\n    if not a: raise SystemExit\n    return a + b, a * b", 3),
        ("def f(a, b): return 0, 0", 1),
        ("def f(a, b): return {1, 2}", 0),
        ("def f(a, b): return float('nan')", 0),
        ("def f(a, b): return f", 0),
        ("def g(a, b): return a", 0),
        ("1 / 0", 0),
        ("def f(", 0),
        ("import sys\nsys.stdout.write('null\\n[5, 6]\\n[0, 0]\\n[0, -1]\\n[4.5, 2.0]\\n')", 0),
    ],
)
def test_functions(runner: CodeRunner, code: str, passed: int) -> None:
    assert score(runner, fenced(code), CALLS) == passed / 4


@pytest.mark.slow
def test_a_call_without_end_ends_the_tests(runner: CodeRunner) -> None:
    code = "def f(a, b):\n    while not a: pass\n    return a + b, a * b"
    assert score(runner, fenced(code), CALLS) == 1 / 4


def test_programs_that_read_and_write(runner: CodeRunner) -> None:
    doubles, absolute = "print(2 * int(input()))", "print(2 * abs(int(input())))"
    assert score(runner, fenced(doubles), TEXTS) == 1.0
    assert score(runner, fenced(absolute), TEXTS) == 0.5
    assert score(runner, fenced(absolute), TEXTS, score="all") == 0.0
    assert score(runner, fenced(doubles), TEXTS, score="all") == 1.0
    assert score(runner, f"{fenced(doubles)}</think>I do not know.", TEXTS) == 0.0
    assert score(runner, doubles, TEXTS) == 0.0


def test_checks_run_behind_the_program(runner: CodeRunner) -> None:
    assert score(runner, fenced(ADDS), CHECK) == 1.0
    assert score(runner, fenced("def f(a, b): return 0"), CHECK) == 0.0
    assert score(runner, "    return a + b, a * b", CHECK, program="completion") == 1.0
    # Neither an early exit of the process nor its output counts as passing the tests.
    for code in ("raise SystemExit(0)", "import os\nos._exit(0)", "print('passed')"):
        assert score(runner, fenced(code), CHECK) == 0.0


def test_expected_results_do_not_enter() -> None:
    entered: list[str] = []

    class Listens:
        async def run(self, program: str, stdin: str = "") -> ProgramResult:
            entered.append(program + stdin)
            return ProgramResult(0, "", "", "exited")

    tests = [
        {"function": "f", "arguments": [1], "result": "secret"},
        {"input": "2", "output": "secret"},
    ]
    assert score(Listens(), fenced("pass"), tests) == 0.0
    assert len(entered) == 2 and not any("secret" in each for each in entered)


@pytest.mark.parametrize("starved", [True, False])
def test_a_program_that_got_no_processor_is_not_judged(starved: bool) -> None:
    class Busy:
        async def run(self, program: str, stdin: str = "") -> ProgramResult:
            return ProgramResult(137, "", "", "deadline", 0.5, 9.0, starved)

    if not starved:
        assert score(Busy(), fenced("pass"), TEXTS) == 0.0
        return
    with pytest.raises(SandboxFailed, match=r"waited 9\.0 s for a processor.*too busy"):
        score(Busy(), fenced("pass"), TEXTS)


@pytest.mark.parametrize(
    ("value", "expected", "equal"),
    [
        (1, 1, True), (1, 1.0, True), (1.0000000001, 1, True), (1.01, 1, False), (True, 1, False),
        (0, False, False), ("1", 1, False), ([1, [2]], [1, [2]], True), ([1], [1, 2], False), (None, None, True),
        ({"a": [1]}, {"a": [1.0]}, True), ({"a": 1}, {"b": 1}, False), (None, 0, False), (10**400, 1.5, False),
        (10**17 + 1, 10**17, False),
    ],
)  # fmt: skip
def test_values_are_compared_as_json(value: Any, expected: Any, equal: bool) -> None:
    assert same(value, expected) is equal


@pytest.mark.parametrize(
    "tests",
    [None, [], "x", [{"input": "1"}], [{"function": "f g", "arguments": [], "result": 1}], [3],
     [{"function": "f", "arguments": [{1}], "result": 1}]],
)  # fmt: skip
def test_prompts_without_tests_are_named(tests: Any, runner: CodeRunner) -> None:
    with pytest.raises(WorkflowError, match=r"prompt 'p': reward 'code_tests' cannot read data\["):
        score(runner, fenced("pass"), tests)


@pytest.mark.parametrize(
    ("text", "block"),
    [
        (fenced("print(1)"), "print(1)\n"),
        (fenced("print(1)") + "\n" + fenced("print(2)"), "print(2)\n"),
        ("```python\nprint(1)\n```\n```python\nprint(2", "print(1)\n"),
        ("~~~\nprint('```')\n~~~", "print('```')\n"),
        ("````\n```\nx\n```\n````", "```\nx\n```\n"),
        ("```py\ns = 'a ``` b'\n```", "s = 'a ``` b'\n"),
        ("print(1)", None),
        ("```python\nprint(1)", None),
        ("", None),
    ],
)
def test_the_last_whole_block(text: str, block: str | None) -> None:
    assert last_block(text) == block


def test_tests_of_three_kinds() -> None:
    assert len(read_cases([*CALLS, *TEXTS, *CHECK])) == 7
