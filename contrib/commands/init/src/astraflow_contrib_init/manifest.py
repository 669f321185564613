"""What this distribution provides."""

from __future__ import annotations

from astraflow_core.component import Command
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_commands() -> list[Command]:
    """The commands ``init`` and ``config import``."""
    return [
        Command(
            name="init",
            summary="write the commented configuration of a first run",
            group="start a run",
            target="astraflow_contrib_init.command:add_arguments",
        ),
        Command(
            name="config import",
            summary="make a configuration from one of TRL, verl, prime-rl or the public AstraFlow",
            group="start a run",
            target="astraflow_contrib_init.import_command:add_arguments",
        ),
    ]
