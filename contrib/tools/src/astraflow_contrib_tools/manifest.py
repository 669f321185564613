"""What this distribution provides."""

from __future__ import annotations

from astraflow_core import Component, hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_workflows() -> list[Component]:
    """The workflow."""
    return [
        Component(
            name="tools",
            target="astraflow_contrib_tools.workflow:ToolsWorkflow",
            config="astraflow_contrib_tools.config:ToolsConfig",
            summary="a policy answers with the help of Python functions and MCP servers",
            capabilities=frozenset({"multi_turn", "tools"}),
        )
    ]
