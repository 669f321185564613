"""The keys of the transport."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from astraflow_core.config.models import ConfigModel
from astraflow_plugin_zmq.messages import MAX_CREDIT

WILDCARDS = frozenset({"", "*", "0.0.0.0", "::"})  # noqa: S104 (what needs an address to advertise)


class ZmqConfig(ConfigModel):
    """Keys of ``transport = { use = "zmq" }``."""

    host: str = Field("127.0.0.1", description="Address that the publisher binds.")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(0, description="0: any free port.")
    advertise: str | None = Field(
        None, description="Host name by which receivers reach the publisher; default: host."
    )
    credit: Annotated[int, Field(ge=1, le=MAX_CREDIT)] = Field(
        8, description="Blocks that a receiver asks for before the first has come."
    )

    @model_validator(mode="after")
    def _reachable(self) -> ZmqConfig:
        if self.host in WILDCARDS and self.advertise is None:
            raise ValueError(
                f"host {self.host!r} binds every address: say in advertise which to use"
            )
        return self
