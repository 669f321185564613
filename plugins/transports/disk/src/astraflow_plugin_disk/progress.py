"""What a publisher is at, in an object that its readers poll while a version is not there yet."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import msgspec

from astraflow_core.errors import WireError
from astraflow_plugin_disk.store import ObjectStore, StoreError
from astraflow_wire.decoding import from_json

NAME = "progress"
EVERY_S = 1.0
_log = logging.getLogger(__name__)


class StoreProgress(msgspec.Struct, frozen=True):
    """``coming``: versions that are being written or wait; ``failed``: the last that could not be written, with
    the reason; ``objects`` written so far."""

    coming: tuple[int, ...] = ()
    failed: dict[int, str] = {}
    objects: int = 0


def read_progress(store: ObjectStore) -> StoreProgress:
    """What the publisher says; nothing if it says nothing that can be read."""
    try:
        data = store.read(NAME)
        return from_json(data, StoreProgress, "malformed") if data else StoreProgress()
    except (StoreError, WireError) as error:
        _log.debug("no progress: %s", error)
        return StoreProgress()


class Board:
    """The object, kept up to date from any thread with what ``now()`` gives; at most once per :data:`EVERY_S` for
    objects alone."""

    def __init__(self, store: ObjectStore, now: Callable[[], StoreProgress]) -> None:
        self._store, self._now = store, now
        self._lock = threading.Lock()
        self._last_reported = StoreProgress()
        self._since = 0.0

    def show(self) -> None:
        """Write it. Raises :class:`StoreError`."""
        with self._lock:  # what is written later was true later
            self._write(self._now())

    def update(self) -> None:
        """Write it if it is worth it; a store that fails at this may still take the version."""
        with self._lock:
            progress, told = self._now(), self._last_reported
            same = (progress.coming, progress.failed) == (told.coming, told.failed)
            if same and time.monotonic() - self._since < EVERY_S:
                return
            try:
                self._write(progress)
            except StoreError as error:
                _log.warning("writing the progress file for readers failed: %s", error)

    def _write(self, progress: StoreProgress) -> None:
        self._store.write(NAME, msgspec.json.encode(progress))
        self._last_reported, self._since = progress, time.monotonic()
