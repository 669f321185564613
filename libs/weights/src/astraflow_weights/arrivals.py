"""Which blocks of a version have arrived."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable


class Arrivals:
    """Indices of verified blocks, which others may wait for. Threads may share it."""

    def __init__(self) -> None:
        self._here: set[int] = set()
        self._changed = threading.Condition()
        self._failed = False

    def __contains__(self, block: object) -> bool:
        return block in self._here

    def __len__(self) -> int:
        return len(self._here)

    def add(self, block: int) -> None:
        """One more has arrived."""
        self.update((block,))

    def update(self, blocks: Iterable[int]) -> None:
        """Several have arrived."""
        with self._changed:
            self._here.update(blocks)
            self._changed.notify_all()

    def fail(self) -> None:
        """Record that no more blocks will arrive."""
        with self._changed:
            self._failed = True
            self._changed.notify_all()

    def wait_for(self, blocks: range, timeout: float) -> bool:
        """Wait until all of ``blocks`` are here; False if they are not within ``timeout`` seconds, or never
        will be."""
        until = time.monotonic() + timeout
        with self._changed:
            while not self._here.issuperset(blocks):
                left = until - time.monotonic()
                if self._failed or left <= 0:
                    return False
                self._changed.wait(left)
            return True
