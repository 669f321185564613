"""The keys of the transport."""

from __future__ import annotations

from pydantic import Field

from astraflow_core.config.models import ConfigModel


class ShmConfig(ConfigModel):
    """Keys of ``transport = { use = "shm" }``."""

    directory: str = Field(
        "/dev/shm",  # noqa: S108 (private folders are made within)
        description="Folder in memory (tmpfs) that trainer and RaaS share.",
    )
    ahead: bool = Field(
        True, description="Verify a version when the doorbell rings, before it is asked for."
    )
