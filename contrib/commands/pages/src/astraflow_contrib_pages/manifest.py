"""What this distribution provides."""

from __future__ import annotations

from astraflow_core.component import Command, load_attribute
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_commands() -> list[Command]:
    """The command ``ui``."""
    return [
        Command(
            name="ui",
            summary="show the runs of a folder in a browser: curves, trajectories, services",
            group="inspect a run",
            target="astraflow_contrib_pages.command:add_arguments",
        )
    ]


@hookimpl
def astraflow_run_started(run: object) -> None:
    """Remember which run this process is of."""
    load_attribute("astraflow_contrib_pages.in_dataflow:remember")(run)


@hookimpl
def astraflow_routes(service: str) -> list[object]:
    """The pages about the run, in its dataflow."""
    routers: list[object] = load_attribute("astraflow_contrib_pages.in_dataflow:routers")(service)
    return routers
