"""What this distribution provides: strings only, so that listing it imports nothing else."""

from __future__ import annotations

from astraflow_core.component import Command
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_commands() -> list[Command]:
    """The command ``best-step``."""
    return [
        Command(
            name="best-step",
            summary="the step of a run with the highest value of a metric",
            group="inspect a run",
            target="astraflow_plugin_best_step.command:add_arguments",
        )
    ]
