"""What this distribution provides."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_trackers() -> list[Component]:
    """The tracker ``tensorboard``."""
    return [
        Component(
            name="tensorboard",
            target="astraflow_contrib_tensorboard.tracker:TensorBoardTracker",
            config="astraflow_contrib_tensorboard.config:TensorBoardTrackerConfig",
            summary="event files for TensorBoard",
            capabilities=frozenset({"rollouts"}),
        )
    ]
