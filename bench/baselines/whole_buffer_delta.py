"""Deltas as a public asynchronous RL system sends them: u32 indices and raw values of the whole buffer.

Restates: the sender compares two flat bf16 buffers at once, into a mask as long as the model, and writes a head of
16 bytes, the index of every changed element (u32; u64 beyond 2^32 elements) and its new value; a body of more
than half of the buffer does not fit, and the receiver pulls everything. The receiver copies the body, sorts the
indices, scatters into a private copy of the model and writes the whole file again beside the old one, which it
replaces. Nothing is verified. Left out, in its favour: the trainer's copy into shared memory and the transfer.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

_HEAD = struct.Struct("<QHHi")


class DoesNotFit(Exception):
    """More has changed than a body can hold."""


def encode(old: Any, new: Any) -> bytes:
    """The body for two uint16 buffers; raises :class:`DoesNotFit`."""
    mask = old != new
    indices = np.flatnonzero(mask)
    wide = len(new) > 1 << 32
    size = _HEAD.size + len(indices) * ((8 if wide else 4) + 2)
    if size > _HEAD.size + new.nbytes // 2:
        raise DoesNotFit(f"{size} bytes")
    body = bytearray(size)
    _HEAD.pack_into(body, 0, len(indices), 2, int(wide), 0)
    end = size - 2 * len(indices)
    np.frombuffer(body, np.uint64 if wide else np.uint32, len(indices), _HEAD.size)[:] = indices
    np.frombuffer(body, np.uint16, len(indices), end)[:] = new[indices]
    return bytes(body)


class Receiver:
    """A copy of the weights in memory and one in ``file``."""

    def __init__(self, weights: Any, file: Path) -> None:
        self._weights, self._file = bytearray(weights.tobytes()), file
        file.write_bytes(self._weights)

    def apply(self, body: bytes) -> None:
        """Bring both to the new version."""
        body = bytes(memoryview(body))
        count, _, flags, _ = _HEAD.unpack_from(body)
        wide = flags & 1
        indices = np.frombuffer(body, np.uint64 if wide else np.uint32, count, _HEAD.size)
        values = np.frombuffer(body, np.uint16, count, len(body) - 2 * count)
        order = np.argsort(indices)
        np.frombuffer(self._weights, np.uint16)[indices[order]] = values[order]
        partial = self._file.with_suffix(".new")
        partial.write_bytes(self._weights)
        partial.rename(self._file)
