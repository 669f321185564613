"""What this distribution provides."""

from __future__ import annotations

from astraflow_core.component import Command
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_commands() -> list[Command]:
    """The command ``raas check``."""
    return [
        Command(
            name="raas check",
            summary="check a rollout service over HTTP",
            group="one process of a run",
            target="astraflow_contrib_raas_check.command:add_arguments",
        )
    ]
