"""What this distribution provides."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)
ASTRAFLOW_ENVIRONMENT = "astraflow_contrib_mlflow.environment:environment"


@hookimpl
def astraflow_trackers() -> list[Component]:
    """The tracker ``mlflow``."""
    return [
        Component(
            name="mlflow",
            target="astraflow_contrib_mlflow.tracker:MlflowTracker",
            config="astraflow_contrib_mlflow.config:MlflowTrackerConfig",
            summary="MLflow, a server or local files",
            capabilities=frozenset({"rollouts"}),
        )
    ]
