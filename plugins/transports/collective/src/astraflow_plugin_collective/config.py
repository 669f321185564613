"""The keys of the transport."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from astraflow_core.config.models import ConfigModel

WILDCARDS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 (what needs an address to advertise)


class CollectiveConfig(ConfigModel):
    """Keys of ``transport = { use = "collective" }``."""

    host: str = Field("127.0.0.1", description="Address that the trainer binds.")
    advertise: str | None = Field(
        None, description="Name or address by which engines reach the trainer; default: host."
    )
    port: Annotated[int, Field(ge=0, le=65535)] = Field(
        0, description="Of the HTTP publisher beside the broadcast; 0: any free port."
    )
    backend: Literal["auto", "gloo", "nccl"] = Field(
        "auto", description="'auto': nccl if the trainer has CUDA, else gloo; engines follow."
    )
    window_s: Annotated[float, Field(gt=0)] = Field(
        2.0,
        description="How long a version waits for engines to join; it ends early once all are there that "
        "joined for the version before.",
    )
    deadline_s: Annotated[float, Field(gt=0)] = Field(
        30.0, description="Longest that the meeting and the broadcast of one version may take."
    )
    bucket_mb: Annotated[int, Field(ge=1, le=4096)] = Field(
        64, description="MiB that are broadcast at once; a larger tensor goes alone."
    )
    streams: Annotated[int, Field(ge=1, le=64)] = Field(
        4, description="Connections of a fetch by HTTP."
    )
    directory: str | None = Field(
        None, description="Folder for versions fetched by HTTP; default: the run directory."
    )

    @model_validator(mode="after")
    def _reachable(self) -> CollectiveConfig:
        if self.host in WILDCARDS and self.advertise is None:
            raise ValueError(
                f"host {self.host!r} binds every address: say in advertise which to use"
            )
        return self
