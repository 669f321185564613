from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from astraflow_contrib_solver_verifier.config import WorkflowConfig
from astraflow_contrib_solver_verifier.workflow import SolverVerifier
from astraflow_core.errors import PreflightError, WorkflowError
from astraflow_core.types import ComponentContext, Prompt
from astraflow_testing.conformance.subject import context
from astraflow_testing.scripted_policies import ScriptedPolicies


def run_with(*policies: str) -> ComponentContext:
    return context("raas", Path("r"), policies=policies)


def test_the_verifier_reads_prompt_and_answer(tmp_path: Path) -> None:
    workflow = SolverVerifier(
        WorkflowConfig(template="{prompt}{answer};"),
        context("raas", tmp_path, policies=("solver", "verifier")),
    )
    policies = ScriptedPolicies(("solver", "verifier"), says={"solver": ["80"], "verifier": ["87"]})
    trajectory = asyncio.run(
        workflow.run_episode(policies.engines(), Prompt("p", {"prompt": "x12="}))
    )

    assert trajectory is not None
    assert [(each.policy, each.text) for each in policies.asked] == [
        ("solver", "x12="),
        ("verifier", "x12=80;"),
    ]
    assert [each.policy for each in trajectory.sequences] == ["solver", "verifier"]
    assert [each.text for each in trajectory.completions] == ["80", "87"]


def test_an_empty_answer_is_rejected() -> None:
    policies = ScriptedPolicies(("solver", "verifier"), says={"solver": [""]})
    workflow = SolverVerifier(WorkflowConfig(), run_with("solver", "verifier"))
    assert (
        asyncio.run(workflow.run_episode(policies.engines(), Prompt("p", {"prompt": "?"}))) is None
    )
    assert [each.policy for each in policies.asked] == ["solver"]


def test_a_run_without_the_policies_is_refused() -> None:
    with pytest.raises(PreflightError, match="needs a policy 'verifier'; the run has solver"):
        SolverVerifier(WorkflowConfig(), run_with("solver"))


@pytest.mark.parametrize(
    "data", [{}, {"prompt": ""}, {"prompt": [{"role": "user", "content": "x"}]}]
)
def test_a_prompt_that_is_no_text_is_named(data: dict[str, Any]) -> None:
    workflow = SolverVerifier(WorkflowConfig(), run_with("solver", "verifier"))
    policies = ScriptedPolicies(("solver", "verifier"))
    with pytest.raises(WorkflowError, match=r"prompt 'p'.*expects data\['prompt'\] to be text"):
        asyncio.run(workflow.run_episode(policies.engines(), Prompt("p", data)))


def test_a_template_without_the_answer_is_refused() -> None:
    with pytest.raises(ValueError, match="must contain"):
        WorkflowConfig(template="{prompt}")
