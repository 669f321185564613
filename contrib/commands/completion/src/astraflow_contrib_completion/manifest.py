"""What this distribution provides."""

from __future__ import annotations

from astraflow_core.component import Command
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_commands() -> list[Command]:
    """The command ``completion``."""
    return [
        Command(
            name="completion",
            summary="print a script that makes a shell complete command lines",
            group="start a run",
            target="astraflow_contrib_completion.command:add_arguments",
        )
    ]
