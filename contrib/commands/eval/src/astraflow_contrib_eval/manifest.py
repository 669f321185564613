"""What this distribution provides."""

from __future__ import annotations

from astraflow_core.component import Command
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_commands() -> list[Command]:
    """The command ``eval``."""
    return [
        Command(
            name="eval",
            summary="measure a model, or a version of a run, on evaluation sets",
            group="inspect a run",
            target="astraflow_contrib_eval.command:add_arguments",
        )
    ]
