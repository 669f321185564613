"""What this distribution provides."""

from __future__ import annotations

from astraflow_core.component import Command
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_commands() -> list[Command]:
    """The command ``ui``."""
    return [
        Command(
            name="ui",
            summary="show the runs of a folder in a browser: curves, trajectories, services",
            group="inspect a run",
            target="astraflow_contrib_pages.command:add_arguments",
        )
    ]
