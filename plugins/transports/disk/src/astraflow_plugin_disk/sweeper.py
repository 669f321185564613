"""Removes dropped versions once they have no readers, in a separate thread."""

from __future__ import annotations

import logging
import threading
import time
from functools import partial

import msgspec

from astraflow_core.errors import WireError
from astraflow_plugin_disk.places import LEASE_S, READERS, manifest_name
from astraflow_plugin_disk.store import ObjectStore, StoreError
from astraflow_wire.decoding import from_json

EVERY_S = 5.0
ATTEMPTS = 5
_log = logging.getLogger(__name__)


class ReaderLease(msgspec.Struct, frozen=True):
    """What counts of a reader's lease."""

    version: int


class Sweeper:
    """A lease is a small object that its reader rewrites. It counts until it has not changed for
    :data:`LEASE_S` by the publisher's monotonic clock, so no two clocks are ever compared."""

    def __init__(self, store: ObjectStore, policy: str) -> None:
        self._store = store
        self._dropped: set[int] = set()
        self._seen: dict[str, tuple[bytes, float]] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"disk-sweep-{policy}", daemon=True)
        self._thread.start()

    def drop(self, version: int) -> None:
        """Remove a version as soon as no lease on it is left."""
        with self._changed:
            self._dropped.add(version)
            self._changed.notify_all()

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._dropped or self._closed)
                if self._closed:
                    return
                dropped = set(self._dropped)
            try:
                leased = self._leased()
                for version in dropped - leased:
                    self._store.remove(manifest_name(version))
                    self._store.remove(f"v{version}")
                    with self._changed:
                        self._dropped.discard(version)
            except StoreError as error:
                _log.warning("a dropped version cannot be deleted yet: %s", error)
            with self._changed:
                if self._dropped:
                    more = partial(self._more_than, dropped)
                    self._changed.wait_for(more, EVERY_S)

    def _more_than(self, dropped: set[int]) -> bool:
        return self._closed or bool(self._dropped - dropped)

    def _leased(self) -> set[int]:
        now, leased, seen = time.monotonic(), set(), {}
        for name, body in self._leases().items():
            before = self._seen.get(name)
            since = before[1] if before is not None and before[0] == body else now
            seen[name] = (body, since)
            if now - since > LEASE_S:
                self._store.remove(f"{READERS}/{name}")
                continue
            try:
                leased.add(from_json(body, ReaderLease, "malformed").version)
            except WireError as error:
                _log.warning("lease %s: %s", name, error)
        self._seen = seen
        return leased

    def _leases(self) -> dict[str, bytes]:
        """Every lease, by name. One that vanishes while it is read has ended, or was just written aside and
        has its name by now: the list is read again."""
        found: dict[str, bytes] = {}
        for _ in range(ATTEMPTS):
            found = {}
            names = self._store.names(READERS)
            for name in names:
                if (body := self._store.read(f"{READERS}/{name}")) is not None:
                    found[name] = body
            if len(found) == len(names):
                break
        return found
