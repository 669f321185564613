"""What is read out of replies, and programs in the real sandbox."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astraflow_contrib_teams.config import HiddenTestsConfig, TestedCodeConfig
from astraflow_contrib_teams.hidden_tests import HiddenTests
from astraflow_contrib_teams.replies import (
    ProgramTest,
    accepted,
    cases_in,
    choice,
    last_block,
    subtasks,
)
from astraflow_contrib_teams.tested_code import TestedCode
from astraflow_core.errors import WorkflowError
from astraflow_core.types import Completion, Prompt, Sampling, TrajectoryView
from astraflow_sandbox.config import SandboxTable
from astraflow_testing.conformance.subject import context
from astraflow_testing.scripted_policies import ScriptedPolicies

PATIENT = SandboxTable(deadline_s=120)
RIGHT = "n = int(input())\nprint(2 * n)"
WRONG = "n = int(input())\nprint(2 * abs(n))"
CASES = [{"input": "3\n", "output": "6"}, {"input": "-1\n", "output": "-2  \n\n"}]


def fenced(code: str, language: str = "python") -> str:
    return f"So:\n```{language}\n{code}\n```\nDone."


@pytest.mark.parametrize(
    ("text", "block"),
    [
        (fenced("print(1)"), "print(1)\n"),
        (fenced("print(1)", ""), "print(1)\n"),
        (fenced("print(1)") + fenced("print(2)", "py"), "print(2)\n"),
        (fenced("print(1)") + "```python\nprint(2", "print(1)\n"),
        ("```print(1)```", "print(1)"),
        ("```\nx y = 1\n```", "x y = 1\n"),
        ("```x y = 1\nz\n```", "x y = 1\nz\n"),
        ("print(1)", None),
        ("```python\nprint(1)", None),
        ("", None),
    ],
)
def test_the_last_whole_block(text: str, block: str | None) -> None:
    assert last_block(text) == block


def test_verdicts_and_choices() -> None:
    assert accepted("VERDICT: REJECT ... no: Verdict: **Accept**") is True
    assert accepted("VERDICT: ACCEPT\nVERDICT: REJECT.") is False
    assert accepted("I accept. VERDICT") is None
    assert choice("CHOICE: 1, no, choice: 3.", 3) == 2
    assert [choice(f"CHOICE: {n}", 3) for n in (0, 4, 1000)] == [None] * 3
    assert subtasks("<subtask>a</subtask><subtask>b</subtask><subtask>c", 9) == ["a", "b"]


def test_tests_of_a_tester() -> None:
    three = '[{"input": "1", "output": "2"}, {"input": "", "output": "0", "why": "empty"}, {}]'
    assert cases_in(three, 5) == [ProgramTest("1", "2"), ProgramTest("", "0")]
    assert cases_in(fenced(three, "json"), 1) == [ProgramTest("1", "2")]
    for text in ("", "{}", "[" * 5000, fenced("print(1)"), "9" * 5000):
        assert cases_in(text, 5) == []


def test_replies_are_read_in_linear_time() -> None:
    for text in ("VERDICT" * 40_000, "CHOICE: " * 40_000, "```" * 100_000, "<subtask>" * 40_000):
        began = time.process_time()
        accepted(text), choice(text, 3), last_block(text), subtasks(text, 3), cases_in(text, 3)
        assert time.process_time() - began < 5


def score(text: str, **data: Any) -> float:
    reward = HiddenTests(HiddenTestsConfig(sandbox=PATIENT), context("raas", Path("run")))
    completion = Completion("solver", text, np.zeros(1, np.int32), "stop")
    prompt = Prompt("p", {"prompt": "Double.", **data})
    return asyncio.run(reward.score(TrajectoryView(prompt, (completion,))))


def test_hidden_tests_are_run_in_the_sandbox() -> None:
    assert score(fenced(RIGHT), tests=CASES) == 1.0
    assert score(fenced(WRONG), tests=CASES) == 0.0
    assert score(f"{fenced(RIGHT)}</think>I do not know.", tests=CASES) == 0.0
    assert score(RIGHT, tests=CASES) == 0.0


@pytest.mark.parametrize("tests", [None, [], "x", [{"input": "1"}], [CASES[0], 3]])
def test_prompts_without_tests_are_named(tests: Any) -> None:
    with pytest.raises(
        WorkflowError, match=r"prompt 'p': reward 'hidden_tests' needs data\['tests'\]"
    ):
        score(fenced(RIGHT), tests=tests)


def test_a_whole_episode_in_the_sandbox() -> None:
    run = context("raas", Path("run"), policies=("solver", "tester"))
    workflow = TestedCode(TestedCodeConfig(sandbox=PATIENT), run)
    says = {
        "solver": [fenced(WRONG), fenced(RIGHT)],
        "tester": [
            fenced('[{"input": "2", "output": "4"}, {"input": "-1", "output": "-2"}]', "json")
        ],
    }
    policies = ScriptedPolicies(("solver", "tester"), says=says, sampling=Sampling(max_tokens=500))
    prompt = Prompt("p", {"prompt": "Double."})
    trajectory = asyncio.run(workflow.run_episode(policies.engines(), prompt))
    assert trajectory is not None and trajectory.completions[-1].text == fenced(RIGHT)
    assert "Input:\n-1\nExpected output:\n-2\nIts output:\n2" in policies.asked[-1].text
