"""The keys of the transport."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from astraflow_core.config.models import ConfigModel

WILDCARDS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 (what needs an address to advertise)


class HttpConfig(ConfigModel):
    """Keys of ``transport = { use = "http" }``."""

    host: str = Field("127.0.0.1", description="Address that the publisher binds.")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(0, description="0: any free port.")
    advertise: str | None = Field(
        None,
        description="How receivers reach the publisher: a host name, or a URL of a proxy before it; "
        "default: host.",
    )
    mirrors: tuple[str, ...] = Field(
        (),
        description="Addresses that receivers try before the publisher: a content delivery network "
        "that asks the publisher for what it lacks, or a bucket.",
    )
    relay: bool = Field(
        False,
        description="Receivers serve each other what they have verified: beyond 4, the publisher "
        "sends a receiver to another one.",
    )
    streams: Annotated[int, Field(ge=1, le=64)] = Field(
        4, description="Connections that a receiver opens at first; more on long links."
    )
    directory: str | None = Field(
        None,
        description="Folder for received versions, e.g. '/dev/shm'; default: the run directory.",
    )

    @model_validator(mode="after")
    def _reachable(self) -> HttpConfig:
        if self.host in WILDCARDS and self.advertise is None:
            raise ValueError(
                f"host {self.host!r} binds every address: say in advertise which to use"
            )
        for mirror in self.mirrors:
            if not mirror.startswith(("http://", "https://")):
                raise ValueError(
                    f"mirror {mirror!r}: expected an address such as https://host/path"
                )
        return self
