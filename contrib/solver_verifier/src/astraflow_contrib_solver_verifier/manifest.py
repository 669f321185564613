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
            summary="one policy answers, another one reads the answer and writes the right one",
            capabilities=frozenset({"multi_policy"}),
        )
    ]
