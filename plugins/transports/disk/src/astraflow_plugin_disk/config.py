"""The keys of the transport."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator

from astraflow_core.config.models import ConfigModel


class DiskConfig(ConfigModel):
    """Keys of ``transport = { use = "disk", url = "…" }``."""

    url: str = Field(
        description="Where versions are kept: an absolute path, or a URL that fsspec opens (s3://BUCKET/PREFIX)."
    )
    options: dict[str, Any] = Field(
        default={},
        description="Storage options of fsspec for that URL; keep credentials in the environment.",
    )
    streams: Annotated[int, Field(ge=1, le=64)] = Field(
        4, description="Objects that are written or read at once."
    )
    part_mb: Annotated[int, Field(ge=2, le=1024)] = Field(
        32, description="Size of an object in MiB, rounded down to blocks of 2 MiB."
    )
    give_up_after_s: Annotated[float, Field(ge=0)] = Field(
        5.0,
        description="How long to wait for a manifest that is not being written to appear (NFS caches).",
    )
    keep: bool = Field(
        False, description="Keep the held versions at the end, for a process that forwards them."
    )

    @field_validator("url")
    @classmethod
    def _absolute(cls, url: str) -> str:
        if "://" not in url and not url.startswith("/"):
            raise ValueError("expected an absolute path, or a URL such as s3://bucket/prefix")
        if ".." in url.split("/"):
            raise ValueError("'..' leads out of the store")
        return url.rstrip("/")
