"""When a trainer's state is saved, and what the dataflow learns of it."""

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
    """Saves a checkpoint every so many updates while training continues, and releases batches.

    Where two checkpoints are kept, batches are released that the older of them holds: should the newest turn out
    damaged, the one before will do.
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
        """Begin a checkpoint if one is due, and see to the one on its way."""
        with self._stalling():
            if self._every and (self._no_room or updates % self._every == 0):
                self._try(updates, version)
            else:
                self._advance()

    def look(self, updates: int, version: int) -> None:
        """While there is nothing to train on: see to the one on its way, or try again for which there was no
        room."""
        if self._no_room:
            self._try(updates, version)
        else:
            self._advance()

    def finish(self, updates: int, version: int) -> None:
        """Save the last state, and return when it is on the disk; the dataflow learns of it by :meth:`leave`.
        :class:`NoRoom` if it cannot be saved, and then it may be tried again."""
        self._note(self._checkpoints.advance(self._operations, wait=True))
        if self._whole != updates:
            self._save(updates, version)
            self._note(self._checkpoints.advance(self._operations, wait=True))

    def leave(self, updates: int, done: bool) -> None:
        """All that the trainer leaves is on the disk: tell the dataflow, which may be gone already. ``done``: all
        updates of the run are made, and nobody will continue from an older state."""
        self._tell(self._before if self._lags and not done else updates, last=True)
        self._checkpoints.close()

    def take_stall_s(self) -> float:
        """Seconds that the updates since the last call waited for checkpoints."""
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
        """Without room for a checkpoint continue without one, and try again at every opportunity."""
        try:
            yield
        except NoRoom as error:
            if not self._no_room:
                log.warning("saving the checkpoint waits for disk space: %s", error)
            self._no_room, self._begun = True, self._whole

    def _save(self, updates: int, version: int) -> None:
        self._checkpoints.begin(self._operations, updates, version)
        self._begun = updates

    def _note(self, folder: Path | None) -> bool:
        """Whether a checkpoint came to the disk."""
        if folder is None:
            return False
        self._before, self._whole = max(self._whole, 0), self._begun
        log.info("checkpoint %s", folder)
        if self._no_room:
            log.warning("there is disk space again: checkpoint of update %d saved", self._whole)
        self._no_room = False
        return True

    def _release(self, folder: Path | None) -> None:
        """Note a checkpoint that came to the disk, and tell the dataflow which batches it no longer needs."""
        if self._note(folder):
            self._tell(self._before if self._lags else self._whole)

    def _tell(self, updates: int, last: bool = False) -> None:
        try:
            self._dataflow.release(updates, last)
        except DeadlineExceeded as error:
            log.warning("the checkpoint is saved, but notifying the dataflow failed: %s", error)
        else:
            self._checkpoints.delete_old()
