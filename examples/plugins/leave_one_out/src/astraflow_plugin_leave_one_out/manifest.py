"""What this distribution provides: strings only, so that listing it imports nothing else."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_algorithms() -> list[Component]:
    """The algorithm ``leave_one_out``."""
    return [
        Component(
            name="leave_one_out",
            target="astraflow_plugin_leave_one_out.algorithm:LeaveOneOut",
            config="astraflow_plugin_leave_one_out.algorithm:LeaveOneOutConfig",
            summary="REINFORCE with the mean of the group's other samples as baseline",
        )
    ]
