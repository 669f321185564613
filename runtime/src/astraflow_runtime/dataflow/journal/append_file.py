"""Append-only files that survive a full disk."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from astraflow_core.errors import NoRoom, RunFailed
from astraflow_runtime.file_lock import lock
from astraflow_wire.host.disk import is_full


class AppendFile:
    """Appends to ``path``. What was written survives the death of this process; power loss may take
    what came after the last :meth:`sync`. Data that the disk has no room for stays in memory, in
    order, until :meth:`write_held` can write it. Opening the file raises :class:`NoRoom` if the
    disk is full and :class:`RunFailed` for any other error. ``size``: its bytes, those in memory
    included; a thread that reads it and then finds nothing held in memory may rely on all of them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trouble = ""
        self._held: deque[bytes | memoryview] = deque()
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            kind = NoRoom if is_full(error, path.parent) else RunFailed
            raise kind(f"{path} cannot be written: {error.strerror}") from error
        self.size = os.fstat(self._file).st_size

    def lock(self, deadline_s: float) -> bool:
        """Lock the file; false if another process still holds the lock at the deadline."""
        return lock(self._file, deadline_s)

    def append(self, *pieces: bytes | memoryview) -> None:
        """Write the pieces in order, or hold them in memory."""
        if self._held:
            self._held.extend(pieces)
        else:
            self._hold(self._write(pieces))
        self.size += sum(len(piece) for piece in pieces)

    def hold(self, *pieces: bytes | memoryview) -> None:
        """Hold the pieces in memory: the disk had no room for something that precedes them."""
        self._held.extend(pieces)
        self.size += sum(len(piece) for piece in pieces)

    def cut(self, size: int) -> None:
        """Truncate the file to ``size`` bytes; nothing may be held in memory."""
        os.truncate(self.path, size)
        self.size = size

    def write_held(self) -> bool:
        """Write as much of the held data as there is room for; returns whether all of it is
        written.
        """
        if self._held:
            pieces, self._held = list(self._held), deque()
            self._hold(self._write(pieces))
        return not self._held

    @property
    def holds(self) -> bool:
        """Whether data is held in memory."""
        return bool(self._held)

    def sync(self) -> None:
        """Flush what was written to the disk."""
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file; data still held is lost, and named in :attr:`trouble`."""
        self.write_held()
        os.close(self._file)

    def _hold(self, pieces: Sequence[bytes | memoryview]) -> None:
        self._held.extend(pieces)
        if not pieces:
            self.trouble = ""

    def _write(self, pieces: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
        """Write the pieces; returns what the disk had no room for."""
        left = [memoryview(piece) for piece in pieces if len(piece)]
        try:
            while left:
                written = os.writev(self._file, left[:1024])
                while left and written >= len(left[0]):
                    written -= len(left.pop(0))
                if written:
                    left[0] = left[0][written:]
        except OSError as error:
            if not is_full(error, self.path.parent):
                raise RunFailed(f"{self.path} cannot be written: {error.strerror}") from error
            self.trouble = f"{error.strerror}: {self.path}"
        return list(left)
