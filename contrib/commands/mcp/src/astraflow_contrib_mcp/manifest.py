"""What this distribution provides."""

from __future__ import annotations

from astraflow_core.component import Command
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_commands() -> list[Command]:
    """The command ``mcp``."""
    return [
        Command(
            name="mcp",
            summary="serve tools by which an agent observes and operates runs (MCP)",
            group="inspect a run",
            target="astraflow_contrib_mcp.command:add_arguments",
        )
    ]
