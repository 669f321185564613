"""The file of a delta, and the list of those that are on offer.

A link is ``AFDELTA1``, the length of its head (u32) and the head's xxh3-64 (u64), the head (msgpack of
:class:`LinkHead`), and the frames one after the other. The list, object :data:`INDEX` of every version, is
the xxh3-128 of its body (16 bytes) and the body, msgpack of a list of :class:`LinkEntry`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec
import numpy as np
import xxhash

from astraflow_core.errors import WireError
from astraflow_plugin_delta.coding.frame import HEAD
from astraflow_wire.decoding import from_msgpack

T = TypeVar("T")
INDEX = "links"
MAX_INDEX = 1 << 20
_MAGIC = b"AFDELTA1"
_START = struct.Struct("<8sIQ")
_TABLE = np.dtype([("block", "<u4"), ("length", "<u4")])


class BadLink(WireError):
    """The bytes are not a link, or not the one that was asked for."""


class LinkHead(msgspec.Struct, frozen=True, array_like=True):
    """From which version to which, both by number and digest, and a table of (block u32, length u32) of
    the frames. Several frames of one block are applied in turn."""

    policy: str
    base: int
    base_digest: str
    version: int
    digest: str
    size: int
    block_size: int
    table: bytes


class LinkEntry(msgspec.Struct, frozen=True, array_like=True):
    """A link on offer: ``size`` in bytes, ``checksum`` its xxh3-128."""

    base: Annotated[int, msgspec.Meta(ge=0)]
    base_digest: str
    version: Annotated[int, msgspec.Meta(ge=0)]
    digest: str
    size: Annotated[int, msgspec.Meta(ge=1)]
    checksum: bytes

    @property
    def name(self) -> str:
        """Name of the side object."""
        return f"link-{self.base}-{self.version}"


@dataclass(frozen=True, slots=True)
class DeltaLink:
    """A link with its frames, views of the bytes it was read from: block → frames in turn."""

    head: LinkHead
    frames: dict[int, list[memoryview]]


def pack_link(head: LinkHead, frames: Iterable[tuple[int, bytes | memoryview]]) -> bytes:
    """The bytes of a link; ``head.table`` is made from the frames."""
    frames = list(frames)
    table = np.array([(block, len(frame)) for block, frame in frames], _TABLE).tobytes()
    packed = msgspec.msgpack.encode(msgspec.structs.replace(head, table=table))
    start = _START.pack(_MAGIC, len(packed), xxhash.xxh3_64_intdigest(packed))
    return b"".join([start, packed, *(frame for _, frame in frames)])


def entry_of(head: LinkHead, data: bytes) -> LinkEntry:
    """What the list says of a link."""
    return LinkEntry(
        head.base, head.base_digest, head.version, head.digest, len(data),
        xxhash.xxh3_128_digest(data),
    )  # fmt: skip


def open_link(data: memoryview, entry: LinkEntry) -> DeltaLink:
    """Read a link that the list calls ``entry``. Frames are not looked into. Raises :class:`BadLink`."""
    if len(data) < _START.size:
        raise BadLink(f"it has {len(data)} bytes")
    magic, length, checksum = _START.unpack_from(data)
    packed = data[_START.size : _START.size + length]
    if magic != _MAGIC or xxhash.xxh3_64_intdigest(packed) != checksum:
        raise BadLink("its head is damaged")
    head = _decoded(packed, LinkHead, "malformed head")
    said = (head.base, head.base_digest, head.version, head.digest)
    if said != (entry.base, entry.base_digest, entry.version, entry.digest):
        raise BadLink(f"it leads from version {head.base} to {head.version}, or from other weights")
    if len(head.table) % _TABLE.itemsize:
        raise BadLink("its table is corrupted")
    table = np.frombuffer(head.table, _TABLE)
    position = _START.size + length
    if (end := position + int(table["length"].sum(dtype=np.uint64))) != len(data):
        raise BadLink(f"its frames end at byte {end} of {len(data)}")
    if (shortest := int(table["length"].min(initial=HEAD.size))) < HEAD.size:
        # Frames of nothing would take many times the memory that the link has bytes.
        raise BadLink(f"a frame of {shortest} bytes has no head")
    frames: dict[int, list[memoryview]] = {}
    for block, size in table.tolist():
        frames.setdefault(block, []).append(data[position : position + size])
        position += size
    return DeltaLink(head, frames)


def pack_index(entries: Iterable[LinkEntry]) -> bytes:
    """The object :data:`INDEX`."""
    body = msgspec.msgpack.encode(list(entries))
    return xxhash.xxh3_128_digest(body) + body


def open_index(data: bytes) -> list[LinkEntry]:
    """Read the object :data:`INDEX`. Raises :class:`BadLink`."""
    if xxhash.xxh3_128_digest(data[16:]) != data[:16]:
        raise BadLink("the list of deltas is damaged")
    return _decoded(data[16:], list[LinkEntry], "malformed list of deltas")


def _decoded(body: bytes | memoryview, expected: type[T], problem: str) -> T:
    try:
        return from_msgpack(body, expected, problem)
    except WireError as error:
        raise BadLink(str(error)) from error
