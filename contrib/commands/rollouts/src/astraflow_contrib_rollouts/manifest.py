"""What this distribution provides."""

from __future__ import annotations

from astraflow_core.component import Command
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_commands() -> list[Command]:
    """The commands ``rollouts`` and ``rewards``."""
    return [
        Command(
            name="rollouts",
            summary="list, follow and read what a run rolled out and trained on",
            group="inspect a run",
            target="astraflow_contrib_rollouts.command:add_arguments",
        ),
        Command(
            name="rewards",
            summary="score the stored rollouts of a run again",
            group="inspect a run",
            target="astraflow_contrib_rollouts.recompute:add_arguments",
        ),
    ]
