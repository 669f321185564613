"""Its keys."""

from __future__ import annotations

import os
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field

from astraflow_core.config.models import ConfigModel


class WandbTrackerConfig(ConfigModel):
    """Keys of ``wandb``. The API key is no key of a config: ``wandb login`` or ``WANDB_API_KEY`` gives it."""

    project: str = Field(default="astraflow", description="Project of the run.")
    entity: str | None = Field(
        default=None, description="User or team; default: that of the API key."
    )
    mode: Literal["online", "offline"] | None = Field(
        default=None,
        description="Whether to send the run or keep it for `wandb sync`; default: WANDB_MODE, else online.",
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

    @property
    def chosen_mode(self) -> str:
        """``online`` or ``offline``."""
        return self.mode or ("offline" if os.environ.get("WANDB_MODE") == "offline" else "online")

    def trouble(self) -> str:
        """For ``astraflow doctor``: that no API key is to be found, if one is needed."""
        if self.chosen_mode == "offline" or os.environ.get("WANDB_API_KEY"):
            return ""
        host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname
        try:
            found = netrc().authenticators(host or "")
        except (OSError, NetrcParseError):
            found = None
        if found:
            return ""
        return (
            f"W&B is to be online, and there is no API key for {host}: run `wandb login`, set WANDB_API_KEY, or set "
            'mode = "offline"'
        )
