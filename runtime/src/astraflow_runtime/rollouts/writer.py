"""Writes a rollout store on a separate thread, so that the service never waits."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from astraflow_core.component import load_attribute
from astraflow_core.config.models import RunConfig
from astraflow_core.errors import PluginError, UserError
from astraflow_runtime.rollouts.building import line_of
from astraflow_runtime.rollouts.records import Record, UpdateRecord
from astraflow_runtime.rollouts.segments import SegmentWriter, encode

log = logging.getLogger(__name__)

Redact = Callable[[dict[str, Any]], dict[str, Any] | None]
WAITING = 32
"""The most records in the queue; further ones are dropped and counted."""
CLOSING_S = 5.0
"""The longest that the exit of a process waits for the queue."""


def redaction(target: str) -> Redact | None:
    """The function that ``[rollouts] redact`` names; ``None`` if that is empty. :class:`UserError` if it does not exist."""
    if not target:
        return None
    try:
        found = load_attribute(target)
    except PluginError as error:
        raise UserError(
            f"[rollouts] redact = {target!r} cannot be used: {error}; name a function as 'module:function'"
        ) from error
    if not callable(found):
        raise UserError(
            f"[rollouts] redact = {target!r} is an object of type {type(found).__name__}; expected a function that "
            "takes a record, a dict, and returns the record to store, or None"
        )
    redact: Redact = found
    return redact


def dataflow_bytes(config: RunConfig) -> int:
    """The share of the dataflow in ``[rollouts] max_mb``, in bytes: it writes texts and tokens, the
    largest part.
    """
    return config.rollouts.max_mb * 1_000_000 * 3 // 4


def trainer_bytes(config: RunConfig) -> int:
    """The share of each trainer."""
    return config.rollouts.max_mb * 1_000_000 // 4 // len(config.policies)


class RolloutWriter:
    """Writes records on a separate thread, at most ``max_bytes`` of them. ``redact`` gets each as
    a dict first. A record is dropped if the queue or the disk is full or ``redact`` raises:
    :attr:`dropped` counts them, and the log reports the first.
    """

    def __init__(
        self, folder: Path, writer: str, max_bytes: int, redact: Redact | None = None
    ) -> None:
        self._folder, self._writer, self._max, self._redact = folder, writer, max_bytes, redact
        self._waiting: queue.Queue[Callable[[], Record] | None] = queue.Queue(WAITING)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._dropped = 0
        self.queued = 0
        """Records that were queued so far."""
        self._done, self._progress = 0, threading.Condition()

    @property
    def dropped(self) -> int:
        """The number of dropped records."""
        return self._dropped

    def put(self, build: Callable[[], Record], *, wait_s: float = 0.0) -> None:
        """Queue ``build``; the thread calls it and writes the result. ``wait_s``: how long to wait
        for room in the queue.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rollouts", daemon=True)
            self._thread.start()
        try:
            self._waiting.put(build, block=wait_s > 0, timeout=wait_s or None)
            self.queued += 1
        except queue.Full:
            self._drop(f"{WAITING} wait to be written")

    def wait(self, queued: int, longest_s: float) -> bool:
        """Wait until the given number of queued records are written or dropped; false if that takes longer."""
        with self._progress:
            return self._progress.wait_for(lambda: self._done >= queued, longest_s)

    def close(self) -> None:
        """Write the queued records, for at most :data:`CLOSING_S` seconds."""
        if self._thread is None:
            return
        try:
            self._waiting.put(None, timeout=CLOSING_S)
        except queue.Full:
            self._drop(f"{WAITING} waited to be written at the end")
            return
        self._thread.join(CLOSING_S)
        if self._thread.is_alive():
            self._drop("the disk took too long at the end")

    def _run(self) -> None:
        segments: SegmentWriter | None = None
        while (build := self._waiting.get()) is not None:
            try:
                record = self._redacted(build())
                if record is None:
                    continue
                if segments is None:
                    segments = SegmentWriter(self._folder, self._writer, self._max)
                line = msgspec.structs.replace(line_of(record), dropped=self._dropped)
                if not segments.append(line, encode(record)):
                    self._drop("it is larger than [rollouts] max_mb allows")
            except OSError as error:
                self._drop(f"{self._folder}: {error.strerror or error}")
            except Exception as error:  # noqa: BLE001
                # An error of redact, or of its result, must cost a record only, never the run.
                self._drop(f"{type(error).__name__}: {error}")
            finally:
                with self._progress:
                    self._done += 1
                    self._progress.notify_all()
        if segments is not None:
            segments.close()

    def _redacted(self, record: Record) -> Record | None:
        if self._redact is None or isinstance(record, UpdateRecord):
            return record
        given = self._redact(msgspec.to_builtins(record))
        return None if given is None else msgspec.convert(given, type(record))

    def _drop(self, why: str) -> None:
        with self._lock:
            self._dropped += 1
            first = self._dropped == 1
        if first:
            log.warning(
                "a rollout is not stored: %s; further ones are counted only, `astraflow rollouts` says how many",
                why,
            )
