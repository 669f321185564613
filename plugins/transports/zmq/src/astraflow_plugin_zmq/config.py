"""The keys of the transport."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from astraflow_plugin_zmq.messages import MAX_CREDIT
from astraflow_weights.connection_keys import ListeningKeys


class ZmqConfig(ListeningKeys):
    """Keys of ``transport = { use = "zmq" }``."""

    credit: Annotated[int, Field(ge=1, le=MAX_CREDIT)] = Field(
        8, description="Number of blocks that a receiver requests before the first one arrives."
    )
    streams: Annotated[int, Field(ge=1, le=16)] = Field(
        4, description="Connections of a receiver; each is encrypted and decrypted by one thread."
    )
