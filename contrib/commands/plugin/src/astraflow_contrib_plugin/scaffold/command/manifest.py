"""What this distribution provides: strings only, so that listing it imports nothing else."""

from __future__ import annotations

from astraflow_core.component import Command
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_commands() -> list[Command]:
    """The command ``sample-thing``."""
    return [
        Command(
            name="sample-thing",
            summary="print the mean of a metric over the last steps of a run",
            group="inspect a run",
            target="astraflow_plugin_sample_thing.component:add_arguments",
        )
    ]
