"""What this distribution provides."""

from __future__ import annotations

from astraflow_core.component import Command
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_commands() -> list[Command]:
    """The commands ``replay`` and ``lineage``."""
    return [
        Command(
            name="replay",
            summary="train on the recorded batches of a run again, without any engine",
            group="inspect a run",
            target="astraflow_contrib_replay_run.command:add_arguments",
        ),
        Command(
            name="lineage",
            summary="show what made an update, a version or a row, and what a prompt changed",
            group="inspect a run",
            target="astraflow_contrib_replay_run.lineage.command:add_arguments",
        ),
    ]
