"""What this distribution provides."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)
ASTRAFLOW_ENVIRONMENT = "astraflow_contrib_wandb.environment:environment"


@hookimpl
def astraflow_trackers() -> list[Component]:
    """The tracker ``wandb``."""
    return [
        Component(
            name="wandb",
            target="astraflow_contrib_wandb.tracker:WandbTracker",
            config="astraflow_contrib_wandb.config:WandbTrackerConfig",
            summary="Weights & Biases, online or offline",
            capabilities=frozenset({"rollouts"}),
        )
    ]
