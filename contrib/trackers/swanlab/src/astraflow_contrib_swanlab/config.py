"""Its keys."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from astraflow_core.config.models import ConfigModel


class SwanlabTrackerConfig(ConfigModel):
    """Keys of ``swanlab``. The API key is no key of a config: ``swanlab login`` or ``SWANLAB_API_KEY`` gives it."""

    project: str = Field(default="astraflow", min_length=1, description="Project of the run.")
    workspace: str | None = Field(
        default=None, description="User or team; default: that of the API key."
    )
    mode: Literal["online", "offline"] = Field(
        default="online",
        description="Whether to send the run or keep it for `swanlab sync`.",
    )
    name: str | None = Field(
        default=None, description="Name shown; default: that of the run directory."
    )
    group: str | None = Field(default=None, description="Group of runs to which it belongs.")
    tags: tuple[str, ...] = Field(default=(), description="Tags of the run.")
    folder: Path | None = Field(
        default=None, description="Folder of its files; default: in the run directory."
    )
    system_metrics: bool = Field(
        default=False, description="Record CPU, memory and GPUs of the launcher's host."
    )
