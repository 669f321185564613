"""What this distribution provides."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)
ASTRAFLOW_ENVIRONMENT = "astraflow_contrib_trackio.environment:environment"


@hookimpl
def astraflow_trackers() -> list[Component]:
    """The tracker ``trackio``."""
    return [
        Component(
            name="trackio",
            target="astraflow_contrib_trackio.tracker:TrackioTracker",
            config="astraflow_contrib_trackio.config:TrackioTrackerConfig",
            summary="Trackio, local files",
            capabilities=frozenset({"rollouts"}),
        )
    ]
