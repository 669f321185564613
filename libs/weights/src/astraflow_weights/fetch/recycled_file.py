"""A file that is no longer needed, kept because writing over its pages costs half of touching fresh ones."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from pathlib import Path
from typing import BinaryIO

_LEASE: int | None = getattr(fcntl, "F_SETLEASE", None)
"""Linux has it."""


class RecycledFile:
    """Holds at most one file. Threads may share it."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._lock = threading.Lock()

    def give(self, path: Path) -> None:
        """Take ``path`` from its place; a file that was held before is deleted."""
        spare = path.with_suffix(".spare")
        with contextlib.suppress(FileNotFoundError):
            path.rename(spare)
            with self._lock:
                spare, self._path = self._path or spare, spare
                if spare != self._path:
                    spare.unlink(missing_ok=True)

    def reuse(self, path: Path) -> BinaryIO | None:
        """The spare, moved to ``path`` and open; its bytes mean nothing. None if there is none, or if any
        process still has it open or mapped: that one may keep reading what it knows."""
        with self._lock:
            spare, self._path = self._path, None
        if spare is None:
            return None
        try:
            file = spare.open("r+b")
        except OSError:  # somebody has cleared the folder
            return None
        try:
            if _LEASE is None:
                raise OSError("this system does not support file leases")
            # A write lease is given only on a file that nobody else has open, a mapping included.
            fcntl.fcntl(file, _LEASE, fcntl.F_WRLCK)
            fcntl.fcntl(file, _LEASE, fcntl.F_UNLCK)
            os.rename(spare, path)
        except OSError:
            file.close()
            spare.unlink(missing_ok=True)
            return None
        return file
