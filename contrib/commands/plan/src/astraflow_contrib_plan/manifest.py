"""What this distribution provides."""

from __future__ import annotations

from astraflow_core.component import Command
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_commands() -> list[Command]:
    """The command ``plan``."""
    return [
        Command(
            name="plan",
            summary="show what a run would start where, its memory per GPU, hours and cost",
            group="start a run",
            target="astraflow_contrib_plan.command:add_arguments",
        )
    ]
