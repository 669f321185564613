"""Keys that transports over a network share: where a publisher listens, and how receivers fetch."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from astraflow_core.config.models import ConfigModel

WILDCARDS = frozenset({"", "*", "0.0.0.0", "::"})  # noqa: S104 (what needs an address to advertise)


class ListeningKeys(ConfigModel):
    """Keys of a publisher that listens."""

    host: str = Field("127.0.0.1", description="Address that the publisher binds.")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(0, description="0: any free port.")
    advertise: str | None = Field(
        None, description="Host name by which receivers reach the publisher; default: host."
    )

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        if self.host in WILDCARDS and self.advertise is None:
            raise ValueError(
                f"host {self.host!r} binds to all addresses: set advertise to the one that receivers use"
            )
        return self


class FetchingKeys(ConfigModel):
    """Keys of a receiver that fetches over several connections into files."""

    streams: Annotated[int, Field(ge=1, le=64)] = Field(
        4, description="Initial number of connections of a receiver; it opens more on slow links."
    )
    directory: str | None = Field(
        None,
        description="Folder for received versions, e.g. '/dev/shm'; default: the run directory.",
    )


class HttpKeys(ListeningKeys, FetchingKeys):
    """Keys of a transport whose versions are served over HTTP."""

    advertise: str | None = Field(
        None,
        description="How receivers reach the publisher: a host name ('{host}' stands for that of the host it runs "
        "on), or a URL of a proxy before it; default: host.",
    )
