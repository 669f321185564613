"""Files in shared memory that hold one version each, and are reused once they have no readers.

A reader's lease is a shared lock (flock) on the file: the kernel ends it when the reader dies, and no clock
is involved. A file is written only under an exclusive lock.
"""

from __future__ import annotations

import fcntl
import itertools
import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from astraflow_core.errors import WeightsError
from astraflow_core.types import ExportedTensor
from astraflow_weights.snapshot import Snapshot, Snapshotter

WAITING = 2
"""Dropped files that are still read and may be used again; more are left to their readers."""


@dataclass(slots=True)
class VersionFile:
    """A mapped file; ``path`` is where it lies now."""

    path: Path
    descriptor: int
    view: memoryview

    def lock(self) -> bool:
        """Take the exclusive lock; False while a reader has a lease."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self) -> None:
        """Let readers in."""
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    def move(self, path: Path) -> None:
        """Give it another name in the same folder."""
        self.path = self.path.rename(path)

    def forget(self) -> None:
        """Remove its name and our mapping; the memory goes with the last reader's."""
        self.path.unlink(missing_ok=True)
        mapping = self.view.obj
        assert isinstance(mapping, mmap.mmap)
        self.view.release()
        mapping.close()
        os.close(self.descriptor)


class SharedFiles(Snapshotter):
    """Takes snapshots into files of ``folder``; see :class:`Snapshotter`."""

    def __init__(self, policy: str, folder: Path) -> None:
        super().__init__(policy)
        self._folder = folder
        self._count = itertools.count()
        self._free: list[VersionFile] = []
        self._filling: VersionFile | None = None

    def write(
        self,
        version: int,
        tensors: Iterable[ExportedTensor],
        derives_from: int | None,
        base: str | None,
    ) -> tuple[Snapshot, VersionFile]:
        """A snapshot and its file, still locked."""
        snapshot = self.take(version, tensors, derives_from, base)
        file, self._filling = self._filling, None
        assert file is not None
        return snapshot, file

    def allocate(self, size: int) -> memoryview:
        """A file of ``size`` bytes without readers, locked. Raises :class:`WeightsError` if memory is
        full."""
        for file in self._free:
            if len(file.view) == size and file.lock():
                self._free.remove(file)
                self._filling = file
                return file.view
        self._filling = self._create(size)
        return self._filling.view

    def recycle(self, buffer: memoryview) -> None:
        """Take back the file of a snapshot that failed."""
        file, self._filling = self._filling, None
        if file is not None:
            file.unlock()
            self.reuse(file)

    def reuse(self, file: VersionFile) -> None:
        """A version was dropped: use its file again once its readers have gone."""
        file.move(self._folder / f"free-{next(self._count)}")
        self._free.append(file)
        while len(self._free) > WAITING:
            self._free.pop(0).forget()

    def close(self) -> None:
        """Forget every file that is not a version's."""
        while self._free:
            self._free.pop().forget()

    def _create(self, size: int) -> VersionFile:
        path = self._folder / f"free-{next(self._count)}"
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            # Writing to a mapping that has no room is a signal that kills; here it is an error.
            os.posix_fallocate(descriptor, 0, size)
            view = memoryview(mmap.mmap(descriptor, size))
        except OSError as error:
            path.unlink()
            os.close(descriptor)
            raise WeightsError(
                f"no room for a version of {size / 1e6:.1f} MB in {self._folder.parent} ({error.strerror}); earlier "
                "versions stay available. Make it larger (mount -o remount,size=…; --shm-size of a "
                "container), set directory, or use a transport that sends"
            ) from error
        file = VersionFile(path, descriptor, view)
        file.lock()
        return file
