"""What this distribution provides."""

from __future__ import annotations

from astraflow_core.component import Command
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_commands() -> list[Command]:
    """The command ``weights``."""
    return [
        Command(
            name="weights",
            summary="list, verify, compare and fetch the versions of a run's weights",
            group="inspect a run",
            target="astraflow_contrib_weights_cli.command:add_arguments",
        )
    ]
