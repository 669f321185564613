"""What this distribution provides."""

from __future__ import annotations

from astraflow_core import Component, hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_workflows() -> list[Component]:
    """The workflow."""
    return [
        Component(
            name="agent",
            target="astraflow_contrib_agent.workflow:AgentWorkflow",
            config="astraflow_contrib_agent.config:AgentConfig",
            summary="your own program plays the episode and samples by OpenAI's protocol",
            capabilities=frozenset({"multi_turn", "multi_policy"}),
        )
    ]
