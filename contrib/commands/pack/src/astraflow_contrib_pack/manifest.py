"""What this distribution provides."""

from __future__ import annotations

from astraflow_core.component import Command
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_commands() -> list[Command]:
    """The commands ``pack`` and ``unpack``."""
    return [
        Command(
            name="pack",
            summary="write a run with its exact packages into one file, for other hosts",
            group="start a run",
            target="astraflow_contrib_pack.command:add_pack",
        ),
        Command(
            name="unpack",
            summary="install a packed run on this host",
            group="start a run",
            target="astraflow_contrib_pack.command:add_unpack",
        ),
    ]
