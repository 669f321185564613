"""The resources of a transport in this process and on this host, to detect leaks."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


class Footprint:
    """Files, shared memory, descriptors and threads that belong to this process now."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.files = {str(path) for path in _files(folder)}
        shared = Path("/dev/shm")  # noqa: S108 (looked at, not written)
        self.shared = (
            {str(p) for p in shared.iterdir() if _is_ours(p)} if shared.is_dir() else set()
        )
        self.descriptors = _descriptors()
        self.threads = {thread.name for thread in threading.enumerate()}

    def left_over(self, give_up_after_s: float = 3) -> list[str]:
        """Resources that appeared since this snapshot and are not released in time."""
        end = time.monotonic() + give_up_after_s
        while True:
            now = Footprint(self._folder)
            found = [
                *(f"file {name}" for name in now.files - self.files),
                *(f"shared memory {name}" for name in now.shared - self.shared),
                *(f"open {target}" for target in now.descriptors - self.descriptors),
                *(f"thread {name}" for name in now.threads - self.threads),
            ]
            if not found or time.monotonic() > end:
                return sorted(found)
            time.sleep(0.05)


def memory_in_use(folder: Path) -> int:
    """Bytes that this process keeps in memory, in shared memory and in files of ``folder``."""
    rollup = Path("/proc/self/smaps_rollup")
    if not rollup.exists():
        pytest.skip("this system does not say how much memory a process has")
    lines = rollup.read_text(encoding="ascii").splitlines()
    resident = next(int(line.split()[1]) << 10 for line in lines if line.startswith("Rss:"))
    return resident + sum(_size(path) for path in _files(folder))


def _files(folder: Path) -> Iterator[Path]:
    """Those below ``folder``; others may come and go meanwhile."""
    for place, _, names in os.walk(folder):
        yield from (Path(place, name) for name in names)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _is_ours(path: Path) -> bool:
    try:
        return path.stat().st_uid == os.getuid()
    except FileNotFoundError:
        return False


def _descriptors() -> set[str]:
    """Sockets, files and mappings that are open, by what they lead to."""
    found = set()
    listing = Path("/proc/self/fd")
    for entry in listing.iterdir() if listing.is_dir() else ():
        try:
            found.add(os.readlink(entry))
        except FileNotFoundError:  # the descriptor of this very listing
            continue
    return found
