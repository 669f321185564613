"""Its keys."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from astraflow_core.config.models import ConfigModel


class TrackioTrackerConfig(ConfigModel):
    """Keys of ``trackio``."""

    project: str = Field(default="astraflow", min_length=1, description="Project of the run.")
    name: str | None = Field(
        default=None, description="Name shown; default: that of the run directory."
    )
    group: str | None = Field(default=None, description="Group of runs to which it belongs.")
    folder: Path | None = Field(
        default=None,
        description="Folder of its databases; default: TRACKIO_DIR, else a folder trackio next to the run directory.",
    )
