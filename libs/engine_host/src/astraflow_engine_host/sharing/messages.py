"""What an attached engine and a shared one say to each other, in the frames of :mod:`astraflow_engine_host.protocol`.

An attachment is of the run of its token, and sees its own requests and its own adapter only: no message names another's.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np

from astraflow_core.types import GenerateResult
from astraflow_engine_host import protocol
from astraflow_engine_host.protocol import Frames, HostMessage
from astraflow_wire.decoding import from_msgpack

SHARED_ENGINES = "ASTRAFLOW_SHARED_ENGINES"
"""Environment variable of a RaaS: policy → :class:`Attachment`, as JSON."""

Count = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
MOST_ADAPTER_BYTES = 1 << 30
MOST_TOKEN = 512
UNKNOWN_CALL = -1
"""The call that a ``Failed`` answers if the sender is not attached."""


class Attachment(msgspec.Struct, frozen=True):
    """Where a shared engine listens, and the token of an engine of a RaaS for it."""

    address: str
    token: str

    def __repr__(self) -> str:
        return f"Attachment({self.address!r})"


class Attach(HostMessage, frozen=True, tag="attach"):
    """The first message; the reply is :class:`astraflow_engine_host.protocol.Ready`, or ``StartFailed``."""

    token: Annotated[str, msgspec.Meta(max_length=MOST_TOKEN)]

    def __repr__(self) -> str:
        return "Attach()"


class LoadAdapter(HostMessage, frozen=True, tag="load_adapter"):
    """The first buffer has the adapter's file: a path could point to the file of another tenant."""

    call: int
    version: Count
    digest: str
    base: str | None


class Detach(HostMessage, frozen=True, tag="detach"):
    """The attachment ends; there is no reply."""


ToShared = (
    Attach
    | LoadAdapter
    | Detach
    | protocol.Generate
    | protocol.RoutedGenerate
    | protocol.Abort
    | protocol.Score
    | protocol.Health
    | protocol.Ping
)


def decode_to_shared(header: bytes) -> ToShared:
    """What an attached engine sent. Raises :class:`astraflow_core.errors.WireError`."""
    message: ToShared = from_msgpack(header, ToShared, "malformed message of an attached engine")  # type: ignore[arg-type]
    return message


def encode(message: HostMessage, *buffers: bytes) -> Frames:
    """A message with buffers that are bytes already."""
    return [msgspec.msgpack.encode(message), *buffers]


def ended_early(request: str) -> GenerateResult:
    """The result of a request that ended without a token."""
    none = np.empty(0, np.int32)
    return GenerateResult(request, none, np.empty(0, np.float32), none, "abort")
