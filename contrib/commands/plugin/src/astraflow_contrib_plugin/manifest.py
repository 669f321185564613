"""What this distribution provides."""

from __future__ import annotations

from astraflow_core.component import Command
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_commands() -> list[Command]:
    """The command ``plugin``."""
    return [
        Command(
            name="plugin",
            summary="write, check and measure a plugin",
            group="start a run",
            target="astraflow_contrib_plugin.command:add_arguments",
        )
    ]
