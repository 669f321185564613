"""Files that only grow, and that a full disk does not harm."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from astraflow_core.errors import NoRoom, RunFailed
from astraflow_runtime.file_lock import lock
from astraflow_wire.host.disk import is_full


class AppendFile:
    """Appends to ``path``. What was written survives the death of this process; power loss may take what
    came after the last :meth:`sync`. What finds no room stays in memory, in order, until
    :meth:`write_held` finds some. To open a file that has no room to be made raises :class:`NoRoom`, any other trouble
    with it :class:`RunFailed`. ``size``: its bytes, with what is kept; another thread that reads it and then finds
    that nothing is kept may count on all of them."""

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
        """Keep other processes away; false if one of them still writes at the deadline."""
        return lock(self._file, deadline_s)

    def append(self, *pieces: bytes | memoryview) -> None:
        """Write the pieces one after the other, or keep them."""
        if self._held:
            self._held.extend(pieces)
        else:
            self._hold(self._write(pieces))
        self.size += sum(len(piece) for piece in pieces)

    def hold(self, *pieces: bytes | memoryview) -> None:
        """Keep the pieces: something that must come before them has found no room."""
        self._held.extend(pieces)
        self.size += sum(len(piece) for piece in pieces)

    def cut(self, size: int) -> None:
        """Drop what lies behind the first ``size`` bytes; nothing may be kept."""
        os.truncate(self.path, size)
        self.size = size

    def write_held(self) -> bool:
        """Write what is kept, as far as there is room; returns whether nothing is kept any longer."""
        if self._held:
            pieces, self._held = list(self._held), deque()
            self._hold(self._write(pieces))
        return not self._held

    @property
    def holds(self) -> bool:
        """Whether there is something that found no room."""
        return bool(self._held)

    def sync(self) -> None:
        """Put what was written on the disk."""
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file; what is kept then is lost, and named in :attr:`trouble`."""
        self.write_held()
        os.close(self._file)

    def _hold(self, pieces: Sequence[bytes | memoryview]) -> None:
        self._held.extend(pieces)
        if not pieces:
            self.trouble = ""

    def _write(self, pieces: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
        """What is left of the pieces when there is no room for more."""
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
