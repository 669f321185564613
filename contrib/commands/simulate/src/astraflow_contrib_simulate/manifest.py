"""What this distribution provides."""

from __future__ import annotations

from astraflow_core.component import Command
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_commands() -> list[Command]:
    """The command ``simulate``."""
    return [
        Command(
            name="simulate",
            summary="predict how a run would perform with other settings, from what it recorded",
            group="inspect a run",
            target="astraflow_contrib_simulate.command:add_arguments",
        )
    ]
