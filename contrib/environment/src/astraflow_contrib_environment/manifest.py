"""What this distribution provides."""

from __future__ import annotations

from astraflow_core import Component, hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_workflows() -> list[Component]:
    """The workflows."""
    return [
        Component(
            name="environment",
            target="astraflow_contrib_environment.workflow:EnvironmentWorkflow",
            config="astraflow_contrib_environment.config:EnvironmentConfig",
            summary="a policy plays an environment, which rewards it turn by turn",
            capabilities=frozenset({"multi_turn", "tools"}),
        ),
        Component(
            name="team",
            target="astraflow_contrib_environment.team:TeamWorkflow",
            config="astraflow_contrib_environment.config:RolesConfig",
            summary="policies and frozen engines play the roles of an environment",
            capabilities=frozenset({"multi_turn", "multi_policy", "tools"}),
        ),
    ]
