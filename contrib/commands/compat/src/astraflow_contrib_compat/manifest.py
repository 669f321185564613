"""What this distribution provides."""

from __future__ import annotations

from astraflow_core.component import Command
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_commands() -> list[Command]:
    """The commands ``compat raas``, ``compat dataflow`` and ``compat trainer``."""
    return [
        Command(
            name="compat raas",
            summary="let rollout services with the protocol of the public AstraFlow work for a run",
            group="start a run",
            target="astraflow_contrib_compat.command:add_raas",
        ),
        Command(
            name="compat dataflow",
            summary="let RaaS of a run work for a dataflow with the protocol of the public AstraFlow",
            group="start a run",
            target="astraflow_contrib_compat.command:add_dataflow",
        ),
        Command(
            name="compat trainer",
            summary="let trainers with the protocol of the public AstraFlow train a policy of a run",
            group="start a run",
            target="astraflow_contrib_compat.command:add_trainer",
        ),
    ]
