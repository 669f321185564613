"""When a trainer saves checkpoints, and its notices to the dataflow."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from pathlib import Path

from astraflow_core.config.models import CheckpointTable
from astraflow_core.errors import DeadlineExceeded, NoRoom
from astraflow_runtime.trainer.checkpoints.store import Checkpoints
from astraflow_runtime.trainer.operations import Operations
from astraflow_runtime.trainer.upstream import DataflowClient

log = logging.getLogger(__name__)


class Saving:
    """Saves a checkpoint at a fixed interval of updates while training continues, and releases batches.

    If two checkpoints are kept, only batches that the older one covers are released, so that a run
    can continue from it if the newest is damaged.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        operations: Operations,
        dataflow: DataflowClient,
        table: CheckpointTable,
    ) -> None:
        self._checkpoints, self._operations, self._dataflow = checkpoints, operations, dataflow
        self._every, self._lags = table.every, table.every > 0 and table.keep > 1
        self._begun = self._whole = -1
        self._before = 0
        self._no_room = False
        self._stall_s = 0.0

    def begin_with(self, updates: int) -> None:
        """The state is that of the checkpoint of ``updates``."""
        self._begun = self._whole = updates

    def after_update(self, updates: int, version: int) -> None:
        """Begin a checkpoint if the interval has passed, and advance the pending one."""
        with self._stalling():
            if self._every and (self._no_room or updates % self._every == 0):
                self._try(updates, version)
            else:
                self._advance()

    def look(self, updates: int, version: int) -> None:
        """While there is no batch: advance the pending checkpoint, or retry one that the disk had
        no room for.
        """
        if self._no_room:
            self._try(updates, version)
        else:
            self._advance()

    def finish(self, updates: int, version: int) -> None:
        """Save the last state, and return when it is on disk; :meth:`leave` reports it to the
        dataflow. :class:`NoRoom` if the disk is full; the call may be repeated.
        """
        self._record_saved(self._checkpoints.advance(self._operations, wait=True))
        if self._whole != updates:
            self._save(updates, version)
            self._record_saved(self._checkpoints.advance(self._operations, wait=True))

    def leave(self, updates: int, done: bool) -> None:
        """Report to the dataflow, which may have exited already, that everything is on disk. ``done``:
        all updates of the run are made, so no older state is needed.
        """
        self._release_batches(self._before if self._lags and not done else updates, last=True)
        self._checkpoints.close()

    def take_stall_s(self) -> float:
        """The seconds for which updates since the last call waited for checkpoints."""
        stalled, self._stall_s = self._stall_s, 0.0
        return stalled

    @contextlib.contextmanager
    def _stalling(self) -> Iterator[None]:
        started = time.monotonic()
        yield
        self._stall_s += time.monotonic() - started

    def _try(self, updates: int, version: int) -> None:
        with self._room():
            self._release(self._checkpoints.advance(self._operations, wait=True))
            if self._begun != updates:
                self._save(updates, version)
            self._release(self._checkpoints.advance(self._operations, wait=False))

    def _advance(self) -> None:
        with self._room():
            self._release(self._checkpoints.advance(self._operations, wait=False))

    @contextlib.contextmanager
    def _room(self) -> Iterator[None]:
        """If the disk is full, continue without the checkpoint and retry later."""
        try:
            yield
        except NoRoom as error:
            if not self._no_room:
                log.warning("saving the checkpoint waits for disk space: %s", error)
            self._no_room, self._begun = True, self._whole

    def _save(self, updates: int, version: int) -> None:
        self._checkpoints.begin(self._operations, updates, version)
        self._begun = updates

    def _record_saved(self, folder: Path | None) -> bool:
        """Whether a checkpoint was completed."""
        if folder is None:
            return False
        self._before, self._whole = max(self._whole, 0), self._begun
        log.info("checkpoint %s", folder)
        if self._no_room:
            log.warning("there is disk space again: checkpoint of update %d saved", self._whole)
        self._no_room = False
        return True

    def _release(self, folder: Path | None) -> None:
        """Record a completed checkpoint, and release the batches that it covers."""
        if self._record_saved(folder):
            self._release_batches(self._before if self._lags else self._whole)

    def _release_batches(self, updates: int, last: bool = False) -> None:
        try:
            self._dataflow.release(updates, last)
        except DeadlineExceeded as error:
            log.warning("the checkpoint is saved, but notifying the dataflow failed: %s", error)
        else:
            self._checkpoints.delete_old()
