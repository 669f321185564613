"""What this distribution provides."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_launchers() -> list[Component]:
    """``ray``."""
    return [
        Component(
            name="ray",
            target="astraflow_contrib_ray.launcher:RayLauncher",
            config="astraflow_contrib_ray.config:RayConfig",
            summary="starts the processes of a run on the nodes of a Ray cluster",
            capabilities=frozenset({"cluster"}),
        )
    ]
