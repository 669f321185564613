"""How much of a journal survives power loss: what was written at its last flush, in the file ``flushed``.

Two slots of the same size, written in turn, so that one is valid whenever power is lost, and in
place, so that no disk space is needed: u64 count of flushes, u64 bytes of ``entries.log``, u64
number of the newest file of bodies, u64 bytes of it, u64 xxh3-64 of all these. The slot with the
higher count is valid.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

import xxhash

FLUSHED = "flushed"

_SLOT = struct.Struct("<QQQQ")
_DIGEST = struct.Struct("<Q")
_SLOT_SIZE = _SLOT.size + _DIGEST.size


@dataclass(frozen=True, slots=True)
class Flushed:
    """``entries`` bytes of ``entries.log``, all files of bodies before number ``segment``, and ``bodies`` bytes of that
    one are on the disk."""

    entries: int = 0
    segment: int = 0
    bodies: int = 0


def read_flushed(directory: Path) -> Flushed:
    """What was flushed of the journal in ``directory``: nothing if there is no valid mark."""
    return _newest(directory / FLUSHED)[1]


class FlushedFile:
    """Writes the file. A failed write leaves an older mark, which is still valid."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FLUSHED
        self._count, mark = _newest(self._path)
        if self._count == 0:
            self.write(mark)

    def write(self, mark: Flushed) -> None:
        """Record that this much is on disk. :class:`OSError` if that cannot be written."""
        count = self._count + 1
        values = _SLOT.pack(count, mark.entries, mark.segment, mark.bodies)
        slot = values + _DIGEST.pack(xxhash.xxh3_64_intdigest(values))
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if os.fstat(handle).st_size < 2 * _SLOT_SIZE:
                os.pwrite(handle, bytes(2 * _SLOT_SIZE), 0)
            os.pwrite(handle, slot, count % 2 * _SLOT_SIZE)
            os.fsync(handle)
        finally:
            os.close(handle)
        self._count = count


def _newest(path: Path) -> tuple[int, Flushed]:
    """Count and content of the newest valid slot."""
    content = path.read_bytes() if path.exists() else b""
    found = [(0, Flushed())]
    for start in (0, _SLOT_SIZE):
        values = content[start : start + _SLOT.size]
        digest = content[start + _SLOT.size : start + _SLOT_SIZE]
        if digest and digest == _DIGEST.pack(xxhash.xxh3_64_intdigest(values)):
            count, *rest = _SLOT.unpack(values)
            found.append((count, Flushed(*rest)))
    return max(found, key=lambda each: each[0])
