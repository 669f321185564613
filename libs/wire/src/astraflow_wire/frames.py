"""The one frame format of push, batch, log and replay: a msgpack header and raw little-endian buffers.

    magic "AF1\\n" | u32 header length | u32 number of buffers | u64 length of each buffer
    | header (msgpack) | zero bytes up to a multiple of 8 | buffers, each padded to a multiple of 8

A decoded frame holds views into the received bytes; nothing is copied.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, TypeVar, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from astraflow_core.errors import WireError
from astraflow_wire.decoding import from_msgpack

MAGIC = b"AF1\n"
MAX_BUFFERS = 4096
MAX_HEADER_BYTES = 64 << 20
_PREFIX = struct.Struct("<4sII")
_SMALL_BYTES = 4096
Buffer = npt.NDArray[Any] | Sequence[npt.NDArray[Any] | memoryview | bytes]
"""An array, or contiguous arrays or bytes that are written one after the other; large ones are not joined first."""
_encoder = msgspec.msgpack.Encoder()
T = TypeVar("T")


def _padded(size: int) -> int:
    return (size + 7) & ~7


def encode_frame(header: Any, buffers: Sequence[Buffer]) -> bytes:
    """One frame as bytes. ``header`` is a msgspec struct or JSON-like."""
    return b"".join(frame_parts(header, buffers))


def frame_parts(header: Any, buffers: Sequence[Buffer]) -> list[bytes | memoryview]:
    """The same as bytes and views of bytes that follow each other; nothing large is copied."""
    head = _encoder.encode(header)
    views = [_views_of(buffer) for buffer in buffers]
    sizes = [sum(map(len, pieces)) for pieces in views]
    start = _PREFIX.size + 8 * len(sizes)
    parts: list[bytes | memoryview] = [
        _PREFIX.pack(MAGIC, len(head), len(sizes)),
        struct.pack(f"<{len(sizes)}Q", *sizes),
        head,
        bytes(_padded(start + len(head)) - start - len(head)),
    ]
    for pieces, size in zip(views, sizes, strict=True):
        parts.extend(pieces)
        if missing := _padded(size) - size:
            parts.append(bytes(missing))
    return parts


def _views_of(buffer: Buffer) -> list[bytes | memoryview]:
    if isinstance(buffer, np.ndarray):
        return [_bytes_of(buffer)]
    views = [_bytes_of(p) if isinstance(p, np.ndarray) else p for p in buffer]
    # Passing on many small ones costs more than a copy.
    small = len(views) > 1 and sum(map(len, views)) <= len(views) * _SMALL_BYTES
    return [b"".join(views)] if small else views


def _bytes_of(array: npt.NDArray[Any]) -> bytes | memoryview:
    if array.nbytes <= _SMALL_BYTES:
        return array.tobytes()
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


class Frame:
    """A received frame: ``header`` bytes (decode them with the struct that is expected) and ``buffers``."""

    __slots__ = ("buffers", "header")

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data).cast("B")
        if view.nbytes < _PREFIX.size:
            raise WireError(f"expected a frame, got {view.nbytes} bytes")
        magic, head_size, count = _PREFIX.unpack_from(view)
        if magic != MAGIC:
            raise WireError(f"expected a frame that begins with {MAGIC!r}, got {bytes(magic)!r}")
        if count > MAX_BUFFERS or head_size > MAX_HEADER_BYTES:
            raise WireError(
                f"a frame of {count} buffers and a {head_size} byte header is over the limits"
            )
        start = _PREFIX.size + 8 * count
        if view.nbytes < start + head_size:
            raise WireError("the frame ends within its header")
        sizes = struct.unpack_from(f"<{count}Q", view, _PREFIX.size)
        self.header = bytes(view[start : start + head_size])
        first = position = _padded(start + head_size)
        self.buffers: list[memoryview] = []
        for size in sizes:
            self.buffers.append(view[position : position + size])
            position += _padded(size)
        if position != max(view.nbytes, first):
            raise WireError(f"the frame has {view.nbytes} bytes, its header announces {position}")

    def check_count(self, expected: int) -> None:
        """Raise :class:`WireError` unless the frame has that many buffers."""
        if len(self.buffers) != expected:
            raise WireError(f"the frame has {len(self.buffers)} buffers; {expected} were expected")

    def array(self, index: int, dtype: npt.DTypeLike, length: int) -> npt.NDArray[Any]:
        """Buffer ``index`` as a read-only array of ``length`` elements; :class:`WireError` if it is not."""
        if index >= len(self.buffers):
            raise WireError(f"the frame has {len(self.buffers)} buffers; number {index} is missing")
        buffer = self.buffers[index]
        expected = np.dtype(dtype).itemsize * length
        if buffer.nbytes != expected:
            raise WireError(f"buffer {index} has {buffer.nbytes} bytes; {expected} were expected")
        array = np.frombuffer(buffer, dtype=dtype)
        if not buffer.readonly:
            array.flags.writeable = False
        return array


def decode_header(frame: Frame, expected: type[T]) -> T:
    """The frame's header as ``expected``; :class:`WireError` says which field is wrong."""
    names = [each.__name__ for each in get_args(expected) or (expected,)]
    return from_msgpack(frame.header, expected, f"not a {' or '.join(names)}")
