"""What this distribution provides."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_launchers() -> list[Component]:
    """``slurm``."""
    return [
        Component(
            name="slurm",
            target="astraflow_contrib_slurm.launcher:SlurmLauncher",
            config="astraflow_contrib_slurm.config:SlurmConfig",
            summary="starts the processes of a run on the nodes of a Slurm cluster",
            capabilities=frozenset({"cluster"}),
        )
    ]
