from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from astraflow_contrib_solver_verifier.config import RewardConfig, WorkflowConfig
from astraflow_contrib_solver_verifier.reward import MarkReward
from astraflow_contrib_solver_verifier.workflow import SolverVerifier
from astraflow_core.errors import PreflightError
from astraflow_core.types import Completion, ComponentContext, Prompt, RunInfo, TrajectoryView


def context(*policies: str) -> ComponentContext:
    run = RunInfo("r", 0, 1, 0, policies, Path("r"))
    return ComponentContext(run, "raas", "", 0, Path("r"))


def completion(policy: str, text: str, finish: str = "stop") -> Completion:
    return Completion(policy, text, np.zeros(0, np.int32), finish)


def score(answer: str, marks: str, finish: str = "stop") -> dict[str, float]:
    reward = MarkReward(RewardConfig(), context("solver", "verifier"))
    view = TrajectoryView(
        Prompt("p", {"prompt": "x12=", "answer": "87"}),
        (completion("solver", answer), completion("verifier", marks, finish)),
    )
    return asyncio.run(reward.score(view))


@pytest.mark.parametrize(
    ("answer", "marks", "solver", "verifier"),
    [
        ("87", "yy", 1.0, 1.0),
        ("87", "nn", 1.0, 1 / 3),
        ("80", "yn", 2 / 3, 1.0),
        ("80", "yy", 2 / 3, 2 / 3),
        ("8", "y", 1 / 3, 1.0),
        ("8765", "yynn", 2 / 5, 1.0),
        ("00", "", 1 / 3, 0.0),
    ],
)
def test_each_policy_is_judged_against_the_truth(
    answer: str, marks: str, solver: float, verifier: float
) -> None:
    assert score(answer, marks) == pytest.approx({"solver": solver, "verifier": verifier})


def test_marks_that_do_not_end_lose_the_end() -> None:
    assert score("87", "yy", finish="length")["verifier"] == pytest.approx(2 / 3)


def test_a_run_without_the_policies_is_refused() -> None:
    with pytest.raises(PreflightError, match="needs a policy 'verifier'; the run has solver"):
        SolverVerifier(WorkflowConfig(), context("solver"))
