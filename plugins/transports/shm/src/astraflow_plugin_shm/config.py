"""The keys of the transport."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from astraflow_core.config.models import ConfigModel


class ShmConfig(ConfigModel):
    """Keys of ``transport = { use = "shm" }``."""

    directory: Path = Field(
        Path("/dev/shm"),  # noqa: S108 (private folders are made within)
        description="Folder in memory (tmpfs) that trainer and RaaS share.",
    )
    ahead: bool = Field(
        True,
        description="Verify a version when the doorbell rings, before it is asked for, and again only if its file was "
        "written to since.",
    )
