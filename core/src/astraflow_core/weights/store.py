"""The versions on offer: which exist, who reads them, when their memory may go."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from astraflow_core.errors import Refused
from astraflow_core.weights.snapshot import Snapshot

LEASE_S = 60.0
"""How long a version stays for a reader that has not called again."""
MAX_READERS = 1024
"""Readers of one version at once."""


@dataclass(slots=True)
class _Held:
    snapshot: Snapshot
    wanted: bool = True
    sending: int = 0
    readers: dict[str, float] = field(default_factory=dict)


class Store:
    """Versions with leases. ``recycle`` takes the buffer of each version that is dropped.

    The lock guards the table only; bytes are sent without it.
    """

    def __init__(self, recycle: Callable[[memoryview], None]) -> None:
        self._recycle = recycle
        self._held: dict[int, _Held] = {}
        self._lock = threading.Lock()
        self.newest = -1

    def add(self, snapshot: Snapshot) -> None:
        """Offer a version; it becomes the newest."""
        with self._lock:
            self.newest = snapshot.manifest.version
            self._held[self.newest] = _Held(snapshot)

    def retain(self, versions: frozenset[int]) -> None:
        """Drop all but the newest and ``versions``, each as soon as nobody reads it."""
        with self._lock:
            for version, held in self._held.items():
                held.wanted = version == self.newest or version in versions
            self._collect()

    @contextmanager
    def reading(self, version: int, reader: str) -> Iterator[Snapshot]:
        """The version, held while it is sent and for :data:`LEASE_S` after by ``reader`` (if not empty).

        Raises :class:`Refused`: 404 for a version that is not held, 429 if it has too many readers.
        """
        with self._lock:
            held = self._held.get(version)
            if held is None:
                has = ", ".join(map(str, sorted(self._held))) or "none"
                raise Refused(404, f"version {version} is not here; versions held: {has}")
            if reader:
                now = time.monotonic()
                if reader not in held.readers and len(held.readers) >= MAX_READERS:
                    held.readers = {r: until for r, until in held.readers.items() if until > now}
                    if len(held.readers) >= MAX_READERS:
                        raise Refused(429, f"version {version} has {MAX_READERS} readers already")
                held.readers[reader] = now + LEASE_S
            held.sending += 1
        try:
            yield held.snapshot
        finally:
            with self._lock:
                held.sending -= 1
                if reader in held.readers:
                    held.readers[reader] = time.monotonic() + LEASE_S
                self._collect()

    def leave(self, version: int, reader: str) -> None:
        """End a reader's lease; unknown ones are ignored, since leaving twice does no harm."""
        with self._lock:
            held = self._held.get(version)
            if held is not None:
                held.readers.pop(reader, None)
                self._collect()

    def versions(self) -> list[int]:
        """Versions held, in order."""
        with self._lock:
            return sorted(self._held)

    def clear(self) -> None:
        """Drop everything that is not being sent."""
        with self._lock:
            for held in self._held.values():
                held.wanted = False
                held.readers.clear()
            self._collect()

    def _collect(self) -> None:
        now = time.monotonic()
        for version, held in list(self._held.items()):
            leased = any(until > now for until in held.readers.values())
            if not (held.wanted or held.sending or leased):
                del self._held[version]
                self._recycle(held.snapshot.data)
