"""What this distribution provides."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)
ASTRAFLOW_ENVIRONMENT = "astraflow_contrib_verifiers.environment:environment"


@hookimpl
def astraflow_prompt_sources() -> list[Component]:
    """The tasks of an environment."""
    return [
        Component(
            name="verifiers",
            target="astraflow_contrib_verifiers.prompts:VerifiersPrompts",
            config="astraflow_contrib_verifiers.config:VerifiersPromptsConfig",
            summary="tasks of an environment of verifiers, v0 or v1",
        )
    ]


@hookimpl
def astraflow_workflows() -> list[Component]:
    """The environment plays."""
    return [
        Component(
            name="verifiers",
            target="astraflow_contrib_verifiers.workflow:VerifiersWorkflow",
            config="astraflow_contrib_verifiers.config:VerifiersWorkflowConfig",
            summary="an environment of verifiers, v0 or v1, plays and rewards the episode",
            capabilities=frozenset({"multi_turn", "multi_policy"}),
        )
    ]
