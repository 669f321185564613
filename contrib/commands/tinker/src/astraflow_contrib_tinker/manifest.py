"""What this distribution provides."""

from __future__ import annotations

from astraflow_core.component import Command
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_commands() -> list[Command]:
    """The command ``tinker``."""
    return [
        Command(
            name="tinker serve",
            summary="serve a model to training scripts that are written for Tinker",
            group="start a run",
            target="astraflow_contrib_tinker.command:add_arguments",
        )
    ]
