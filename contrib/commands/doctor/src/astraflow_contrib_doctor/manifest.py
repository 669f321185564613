"""What this distribution provides."""

from __future__ import annotations

from astraflow_core.component import Command
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_commands() -> list[Command]:
    """The command ``doctor``."""
    return [
        Command(
            name="doctor",
            summary="check this machine, or the configuration of a run",
            group="start a run",
            target="astraflow_contrib_doctor.command:add_arguments",
        )
    ]
