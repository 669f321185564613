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


@hookimpl
def astraflow_environments() -> list[Component]:
    """The environment ``mcp``."""
    return [
        Component(
            name="mcp",
            target="astraflow_contrib_tools.mcp_environment:McpEnvironment",
            config="astraflow_contrib_tools.config:McpEnvironmentConfig",
            summary="an MCP server is the world: its tools are offered, and one of them scores",
            capabilities=frozenset({"tools"}),
        )
    ]
