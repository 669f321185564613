"""The keys of the transport."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from astraflow_core.config.models import ConfigModel

WILDCARDS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 (what needs an address to advertise)


class DeltaConfig(ConfigModel):
    """Keys of ``transport = { use = "delta" }``."""

    host: str = Field("127.0.0.1", description="Address that the publisher binds.")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(0, description="0: any free port.")
    advertise: str | None = Field(
        None,
        description="How receivers reach the publisher: a host name, or a URL of a proxy before it; "
        "default: host.",
    )
    streams: Annotated[int, Field(ge=1, le=64)] = Field(
        4, description="Connections that a receiver opens at once."
    )
    directory: str | None = Field(
        None,
        description="Folder for received versions, e.g. '/dev/shm'; default: the run directory.",
    )
    history: Annotated[int, Field(ge=1, le=64)] = Field(
        16,
        description="Versions back from which a receiver can catch up by deltas, as long as all deltas "
        "together are smaller than the model.",
    )
    kernel: Literal["auto", "numba", "numpy"] = Field(
        "auto", description="What codes the blocks; auto: numba if it is installed."
    )

    @model_validator(mode="after")
    def _reachable(self) -> DeltaConfig:
        if self.host in WILDCARDS and self.advertise is None:
            raise ValueError(
                f"host {self.host!r} binds every address: say in advertise which to use"
            )
        return self
