"""Its keys."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from astraflow_core.config.models import ConfigModel


class TensorBoardTrackerConfig(ConfigModel):
    """Keys of ``tensorboard``."""

    folder: Path | None = Field(
        default=None,
        description="Folder that gets a folder for each run; default: tensorboard in the run directory.",
    )
    flush_s: float = Field(
        default=5.0, gt=0, description="Seconds until logged values are written."
    )
