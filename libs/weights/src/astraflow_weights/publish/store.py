"""The versions on offer: which exist, who reads them, when their memory may be freed."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from astraflow_core.errors import Refused, WeightsError
from astraflow_weights.arrivals import Arrivals
from astraflow_weights.publish.fan_out import FanOut
from astraflow_weights.snapshot import Snapshot

LEASE_S = 60.0
"""How long a version stays for a reader that has not called again."""
MAX_READERS = 1024
"""Readers of one version at once."""
OBJECT_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,95}")
MAX_OBJECTS = 256
"""Side objects of one version."""


@dataclass(slots=True)
class StoredVersion:
    """A version on offer: ``objects`` are named bytes that belong to it, such as deltas from others;
    ``arrivals`` the blocks that have arrived, if some are still to come."""

    snapshot: Snapshot
    arrivals: Arrivals | None = None
    fan_out: FanOut = field(default_factory=FanOut)
    objects: dict[str, memoryview] = field(default_factory=dict)
    wanted: bool = True
    sending: int = 0
    readers: dict[str, float] = field(default_factory=dict)


class VersionStore:
    """Versions with leases. ``recycle`` takes the buffer of each version that is dropped.

    The lock guards the table only; bytes are sent without it.
    """

    def __init__(self, recycle: Callable[[Any], None]) -> None:
        self._recycle = recycle
        self._held: dict[int, StoredVersion] = {}
        self._lock = threading.Lock()
        self.newest = -1

    def add(self, snapshot: Snapshot, objects: Mapping[str, Any]) -> None:
        """Offer a version with its side objects (name → bytes-like); it becomes the newest."""
        held = StoredVersion(snapshot)
        for name, data in objects.items():
            _attach(held, name, data)
        with self._lock:
            self.newest = snapshot.manifest.version
            self._held[self.newest] = held

    def add_arriving(self, snapshot: Snapshot, arrivals: Arrivals) -> bool:
        """Offer a version whose blocks are still arriving, unless it is held already; whether it is new."""
        with self._lock:
            version = snapshot.manifest.version
            new = version not in self._held
            if new:
                self._held[version] = StoredVersion(snapshot, arrivals)
            return new

    def drop(self, version: int) -> None:
        """Drop a version once it has no readers."""
        with self._lock:
            if version in self._held:
                self._held[version].wanted = False
            self._collect()

    def attach(self, version: int, name: str, data: Any) -> None:
        """Add a side object to a version that is held. It is kept by reference and must not change.

        Raises :class:`WeightsError` if the version is not held, or has an object of that name."""
        with self._lock:
            held = self._held.get(version)
            if held is None:
                raise WeightsError(
                    f"version {version} is not available: nothing can be attached to it"
                )
            _attach(held, name, data)

    def latest(self) -> Snapshot | None:
        """The newest version, if any is held."""
        with self._lock:
            held = self._held.get(self.newest)
            return held.snapshot if held else None

    def retain(self, versions: frozenset[int]) -> None:
        """Drop all but the newest and ``versions``, each once it has no readers."""
        with self._lock:
            for version, held in self._held.items():
                held.wanted = version == self.newest or version in versions
            self._collect()

    @contextmanager
    def reading(self, version: int, reader: str) -> Iterator[StoredVersion]:
        """The version, held while it is sent and for :data:`LEASE_S` after by ``reader`` (if not empty).

        Raises :class:`Refused`: 404 for a version that is not held, 429 if it has too many readers.
        """
        with self._lock:
            held = self._held.get(version)
            if held is None:
                has = ", ".join(map(str, sorted(self._held))) or "none"
                raise Refused(404, f"version {version} is not available; available versions: {has}")
            if reader:
                now = time.monotonic()
                if reader not in held.readers and len(held.readers) >= MAX_READERS:
                    held.readers = {r: until for r, until in held.readers.items() if until > now}
                    if len(held.readers) >= MAX_READERS:
                        raise Refused(429, f"version {version} has {MAX_READERS} readers already")
                held.readers[reader] = now + LEASE_S
            held.sending += 1
        try:
            yield held
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
                held.fan_out.leave(reader)
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


def _attach(held: StoredVersion, name: str, data: Any) -> None:
    version = held.snapshot.manifest.version
    if not OBJECT_NAME.fullmatch(name):
        raise WeightsError(f"object name {name!r}, expected {OBJECT_NAME.pattern}")
    if name in held.objects or len(held.objects) >= MAX_OBJECTS:
        raise WeightsError(
            f"version {version} has an object {name!r} already, or {MAX_OBJECTS} others"
        )
    view = memoryview(data).toreadonly()
    held.objects[name] = view.cast("B") if view.nbytes else memoryview(b"")
