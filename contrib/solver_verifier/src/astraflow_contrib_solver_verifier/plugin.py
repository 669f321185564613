"""What this distribution provides."""

from __future__ import annotations

from astraflow_core import Component, hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_workflows() -> list[Component]:
    """The workflow."""
    return [
        Component(
            name="solver_verifier",
            target="astraflow_contrib_solver_verifier.workflow:SolverVerifier",
            config="astraflow_contrib_solver_verifier.config:WorkflowConfig",
            summary="one policy answers, another one marks the answer",
            capabilities=frozenset({"multi_policy"}),
        )
    ]


@hookimpl
def astraflow_rewards() -> list[Component]:
    """The reward that goes with it."""
    return [
        Component(
            name="solver_verifier",
            target="astraflow_contrib_solver_verifier.reward:MarkReward",
            config="astraflow_contrib_solver_verifier.config:RewardConfig",
            summary="share of right positions for the solver, of right marks for the verifier",
        )
    ]
