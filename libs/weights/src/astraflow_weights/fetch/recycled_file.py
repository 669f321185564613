"""A file that is no longer needed, kept because writing over its pages costs half of touching fresh ones."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_LEASE: int | None = getattr(fcntl, "F_SETLEASE", None)
"""Linux has it."""


@dataclass(slots=True)
class OpenFile:
    """The file of a version while it is written. ``mapping``: all of it, writable, if every page of it is there already, so
    that bytes can be received where they belong and writing can fail for want of room no longer."""

    file: BinaryIO
    mapping: mmap.mmap | None = None

    @property
    def number(self) -> int:
        """The file descriptor."""
        return self.file.fileno()

    def close(self) -> None:
        """Unmap and close it; closing twice is allowed."""
        if self.mapping is not None:
            self.mapping.close()
        self.file.close()


class RecycledFile:
    """Holds at most one file. Threads may share it.

    What was mapped stays open and mapped from :meth:`reuse` on, through :meth:`lend` and :meth:`give`, since mapping it
    again costs as much as the copy that it saves. Not if not ``mapped``: for one who lets others read a file by the descriptor
    that it was written by, which :meth:`reuse` would not notice.
    """

    def __init__(self, mapped: bool = True) -> None:
        self._mapped = mapped
        self._spare: tuple[Path, OpenFile | None] | None = None
        self._lent: dict[Path, OpenFile] = {}
        self._lock = threading.Lock()

    def lend(self, path: Path, opened: OpenFile) -> None:
        """The file at ``path`` is complete: only what was mapped stays open."""
        with self._lock:
            if self._mapped and opened.mapping is not None:
                self._lent[path] = opened
                return
        opened.close()

    def give(self, path: Path) -> None:
        """Take ``path`` from its place; a file that was held before is deleted."""
        hidden = path.with_suffix(".spare")
        with self._lock:
            opened = self._lent.pop(path, None)
            try:
                path.rename(hidden)
            except FileNotFoundError:
                if opened is not None:
                    opened.close()
                return
            before, self._spare = self._spare, (hidden, opened)
        if before is not None:
            _drop(*before)

    def reuse(self, path: Path, size: int) -> OpenFile | None:
        """The spare, moved to ``path`` and open, for ``size`` bytes; its contents are meaningless. None if there is none, or if any
        process still has it open or mapped: that one may keep reading what it knows."""
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is None:
            return None
        place, opened = spare
        try:
            if opened is None:
                opened = OpenFile(place.open("r+b"))
            if _LEASE is None:
                raise OSError("this system does not support file leases")
            # A write lease is granted only on a file that no other process has open or mapped; ours is of this descriptor.
            fcntl.fcntl(opened.number, _LEASE, fcntl.F_WRLCK)
            fcntl.fcntl(opened.number, _LEASE, fcntl.F_UNLCK)
            os.rename(place, path)
        except OSError:  # it is in use, or the folder was cleared
            _drop(place, opened)
            return None
        self._map(opened, size)
        return opened

    def close(self) -> None:
        """Close whatever is open; the files are left to the owner of their folder."""
        with self._lock:
            self._mapped = False
            spare, self._spare = self._spare, None
            lent, self._lent = list(self._lent.values()), {}
        for opened in [*lent, spare[1] if spare else None]:
            if opened is not None:
                opened.close()

    def _map(self, opened: OpenFile, size: int) -> None:
        if opened.mapping is not None and len(opened.mapping) != size:
            opened.mapping.close()
            opened.mapping = None
        # One of another length has holes once it is resized.
        if self._mapped and opened.mapping is None and os.fstat(opened.number).st_size == size:
            with contextlib.suppress(OSError, ValueError):  # a file system without mappings
                opened.mapping = mmap.mmap(opened.number, size)


def _drop(path: Path, opened: OpenFile | None) -> None:
    if opened is not None:
        opened.close()
    path.unlink(missing_ok=True)
