"""Its keys."""

from __future__ import annotations

from pydantic import Field

from astraflow_core.config.models import ConfigModel


class MlflowTrackerConfig(ConfigModel):
    """Keys of ``mlflow``."""

    uri: str | None = Field(
        default=None,
        description="Tracking server or store, such as 'http://host:5000'; default: MLFLOW_TRACKING_URI, else a folder "
        "mlruns next to the run directory.",
    )
    experiment: str = Field(default="astraflow", min_length=1, description="Experiment of the run.")
    name: str | None = Field(
        default=None, description="Name shown; default: that of the run directory."
    )
