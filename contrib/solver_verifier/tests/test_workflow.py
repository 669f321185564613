from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astraflow_contrib_solver_verifier.config import WorkflowConfig
from astraflow_contrib_solver_verifier.workflow import SolverVerifier
from astraflow_core.errors import PreflightError
from astraflow_core.types import Completion, ComponentContext, Prompt, RunInfo


def context(*policies: str) -> ComponentContext:
    run = RunInfo("r", 0, 1, 0, policies, Path("r"))
    return ComponentContext(run, "raas", "", 0, Path("r"))


class Says:
    """A policy that always says the same; what it was shown is in ``shown``."""

    def __init__(self, policy: str, text: str) -> None:
        self.policy, self.text = policy, text
        self.shown: list[str] = []

    def render(self, text: str) -> str:
        self.shown.append(text)
        return text

    async def generate(self, asked: str) -> str:
        return self.text

    def completion(self, result: str) -> Completion:
        return Completion(self.policy, result, np.zeros(1, np.int32), "stop")

    def sequence(self, asked: str, result: str) -> tuple[str, str, str]:
        return self.policy, asked, result


def episode(solver: Says, verifier: Says, **keys: Any) -> Any:
    workflow = SolverVerifier(WorkflowConfig(**keys), context("solver", "verifier"))
    engines: Any = {"solver": solver, "verifier": verifier}
    return asyncio.run(workflow.run_episode(engines, Prompt("p", {"prompt": "x12="})))


def test_the_verifier_reads_prompt_and_answer() -> None:
    solver, verifier = Says("solver", "80"), Says("verifier", "87")
    trajectory = episode(solver, verifier, template="{prompt}{answer};")
    assert solver.shown == ["x12="] and verifier.shown == ["x12=80;"]
    assert trajectory.sequences == (("solver", "x12=", "80"), ("verifier", "x12=80;", "87"))
    assert [completion.text for completion in trajectory.completions] == ["80", "87"]


def test_an_empty_answer_is_rejected() -> None:
    verifier = Says("verifier", "87")
    assert episode(Says("solver", ""), verifier) is None
    assert verifier.shown == []


def test_a_run_without_the_policies_is_refused() -> None:
    with pytest.raises(PreflightError, match="needs a policy 'verifier'; the run has solver"):
        SolverVerifier(WorkflowConfig(), context("solver"))


def test_a_template_without_the_answer_is_refused() -> None:
    with pytest.raises(ValueError, match="must contain"):
        WorkflowConfig(template="{prompt}")
