"""What this distribution provides."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)
ASTRAFLOW_ENVIRONMENT = "astraflow_contrib_swanlab.environment:environment"


@hookimpl
def astraflow_trackers() -> list[Component]:
    """The tracker ``swanlab``."""
    return [
        Component(
            name="swanlab",
            target="astraflow_contrib_swanlab.tracker:SwanlabTracker",
            config="astraflow_contrib_swanlab.config:SwanlabTrackerConfig",
            summary="SwanLab, online or local files",
            capabilities=frozenset({"rollouts"}),
        )
    ]
