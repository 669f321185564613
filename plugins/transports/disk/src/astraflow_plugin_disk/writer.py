"""Writes versions in a separate thread, one at a time, so that a trainer waits for its snapshot only."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from astraflow_core.errors import WeightsError
from astraflow_plugin_disk.progress import Board, StoreProgress
from astraflow_plugin_disk.store import ObjectStore, StoreError
from astraflow_weights.snapshot import Snapshot
from astraflow_wire.host.disk import LONGEST_WAIT_S, LOOK_S, says_full

_log = logging.getLogger(__name__)
STILL_S = 300.0
"""Who waits for a store that takes no object for so long gives up."""


class Writer:
    """``write(snapshot)`` puts a version into the store and calls :meth:`wrote` after each object;
    ``done(snapshot, written)`` takes every snapshot in the end.

    At most one version is being written and one waits. A newer one takes the place of the one that waits, once
    :meth:`let_go` was called for that; before, it must be written, and who brings a newer one waits for it.
    """

    def __init__(
        self,
        name: str,
        store: ObjectStore,
        write: Callable[[Snapshot], None],
        done: Callable[[Snapshot, bool], None],
    ) -> None:
        self._board = Board(store, self._progress)
        self._write, self._done = write, done
        self._changed = threading.Condition()
        self._writing: Snapshot | None = None
        self._waiting: Snapshot | None = None
        self._offered: int | None = None
        self._replaceable = False
        self._failed: dict[int, str] = {}
        self._problem = ""
        self._objects = 0
        self._moved = time.monotonic()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def raise_problem(self) -> None:
        """Raise :class:`WeightsError` if a version could not be written since the last call."""
        with self._changed:
            problem, self._problem = self._problem, ""
        if problem:
            raise WeightsError(problem)

    def make_room(self) -> None:
        """Wait while a version waits that must be written."""
        self._wait_for(lambda: self._waiting is None or self._replaceable)

    def put(self, snapshot: Snapshot) -> None:
        """Take the next version, after :meth:`make_room`. Raises :class:`StoreError`, and keeps nothing, if readers
        cannot be told about it, unless that is because the store is full."""
        with self._changed:
            replaced, self._waiting = self._waiting, None
            self._offered = snapshot.manifest.version
        if replaced is not None:
            self._done(replaced, False)
        try:
            self._board.show()
        except StoreError as error:
            if not says_full(error):
                with self._changed:
                    self._offered = None
                self._done(snapshot, False)
                raise
        with self._changed:
            self._offered, self._waiting = None, snapshot
            self._replaceable = False
            self._moved = time.monotonic()
            self._changed.notify_all()

    def let_go(self, version: int) -> None:
        """The version need no longer be written once there is a newer one."""
        with self._changed:
            if self._waiting is not None and self._waiting.manifest.version == version:
                self._replaceable = True

    def wrote(self) -> None:
        """An object is in the store. Raises :class:`StoreError` if the writer was stopped meanwhile."""
        with self._changed:
            self._objects += 1
            self._moved = time.monotonic()
            if self._stopped:
                raise StoreError("the publisher was closed")
        self._board.update()

    def finish(self) -> None:
        """Wait until everything is written."""
        self._wait_for(lambda: self._writing is None and self._waiting is None)

    def close(self) -> None:
        """Stop after the objects that are being written, and write nothing more."""
        with self._changed:
            self._stopped = True
            waiting, self._waiting = self._waiting, None
            self._changed.notify_all()
        if waiting is not None:
            self._done(waiting, False)
        self._thread.join(STILL_S)

    def _progress(self) -> StoreProgress:
        with self._changed:
            held = [each for each in (self._writing, self._waiting) if each is not None]
            coming = [each.manifest.version for each in held]
            if self._offered is not None:
                coming.append(self._offered)
            return StoreProgress(tuple(coming), dict(self._failed), self._objects)

    def _wait_for(self, ready: Callable[[], bool]) -> None:
        with self._changed:
            while not ready():
                left = self._moved + STILL_S - time.monotonic()
                if left <= 0:
                    raise WeightsError(f"the store has taken no object for {STILL_S:.0f} s")
                self._changed.wait(left)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting is not None or self._stopped)
                if self._stopped:
                    return
                snapshot, self._waiting = self._waiting, None
                self._writing = snapshot
                self._moved = time.monotonic()
                self._changed.notify_all()
            assert snapshot is not None
            problem = self._attempt(snapshot)
            self._done(snapshot, not problem)
            self._end(snapshot, problem)

    def _attempt(self, snapshot: Snapshot) -> str:
        """Write a version, again and again while the store has no room for it; why it could not be, if so."""
        version, since = snapshot.manifest.version, None
        while True:
            try:
                self._write(snapshot)
            except Exception as error:  # noqa: BLE001 (raised again in the trainer's thread, by its next publish)
                problem, full = str(error) or type(error).__name__, says_full(error)
            else:
                if since is not None:
                    _log.warning("there is disk space again: version %d is written", version)
                return ""
            with self._changed:
                self._moved = now = time.monotonic()
                if since is None and full:
                    _log.warning("version %d waits for disk space: %s", version, problem)
                since = since or now
                if not full or self._stopped or now - since > LONGEST_WAIT_S:
                    return problem
                self._changed.wait(LOOK_S)

    def _end(self, snapshot: Snapshot, problem: str) -> None:
        manifest = snapshot.manifest
        with self._changed:
            self._writing = None
            if problem and not self._stopped:
                self._failed = {manifest.version: problem}
                self._problem = (
                    f"version {manifest.version} of policy {manifest.policy!r} could not be written: "
                    f"{problem}; earlier versions stay available"
                )
            self._changed.notify_all()
        if not self._stopped:
            self._board.update()
