"""The journal of a run: entries in order, and the bodies of accepted groups in separate files.

``entries.log`` is a sequence of records (:mod:`astraflow_runtime.dataflow.journal.entry_log`).
``bodies-00000000.bin`` and its successors hold push bodies, exactly as received, one after the
other; a file is deleted when none of its rows is needed any longer. ``flushed`` records how much of
both survives power loss (:mod:`astraflow_runtime.dataflow.journal.flushed`): what follows is used
up to the first incomplete record.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import xxhash

from astraflow_core.errors import NoRoom, RunFailed, UserError
from astraflow_runtime.dataflow.journal.append_file import AppendFile
from astraflow_runtime.dataflow.journal.entries import BodyLocation, Entry, Pushed
from astraflow_runtime.dataflow.journal.entry_log import ENTRIES, encode_record
from astraflow_runtime.dataflow.journal.flushed import Flushed, FlushedFile, read_flushed
from astraflow_runtime.dataflow.journal_reader import JournalReader
from astraflow_wire.host.disk import is_full

log = logging.getLogger(__name__)

SEGMENT_BYTES = 64 << 20
"""A file of bodies that has reached this size is followed by another."""

OTHERS_END_S = 10.0
"""Seconds that the dataflow of a killed launcher may take to exit."""


class Journal:
    """The journal in ``directory``, read by :meth:`entries` and then written. ``clock``: seconds of
    the run. ``count``: entries read and written. ``recorded_bytes``: the first files of bodies, up to this total size, are never deleted.
    :class:`UserError` if another process has it open, :class:`NoRoom` if the disk is full.
    """

    def __init__(
        self,
        directory: Path,
        clock: Callable[[], float],
        segment_bytes: int = SEGMENT_BYTES,
        recorded_bytes: int = 0,
    ) -> None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            kind = NoRoom if is_full(error, directory) else RunFailed
            raise kind(f"{directory} cannot be made: {error.strerror}") from error
        self.path, self.reader = directory, JournalReader(directory)
        self._clock, self._segment_bytes = clock, segment_bytes
        self._recorded_bytes = recorded_bytes
        self.count = 0
        self._entries = AppendFile(directory / ENTRIES)
        if not self._entries.lock(OTHERS_END_S):
            self._entries.close()
            raise UserError(f"{directory}: another dataflow is writing this journal; stop it first")
        self._segment = max(self.segments(), default=0)
        try:
            self._check_bodies()
            self._bodies = AppendFile(self._path(self._segment))
            self._flushed = FlushedFile(directory)
        except BaseException as error:
            self._entries.close()
            if isinstance(error, OSError) and is_full(error, directory):
                raise NoRoom(f"{directory}: {error.strerror}") from error
            raise
        self._full: list[AppendFile] = []
        self._changing, self._flushing = threading.Lock(), threading.Lock()
        flush_folder(directory)

    # -- reading ---------------------------------------------------------------------------------

    def entries(self, begin: int = 0, count: int = 0) -> Iterator[tuple[float, Entry]]:
        """(seconds, entry) of everything that was written before, in order, from byte ``begin`` on, the end of entry
        number ``count``, up to the first incomplete entry or body: the rest is truncated. :class:`RunFailed` if it was
        flushed.
        """
        flushed, end = read_flushed(self.path), begin
        self.count = count
        for record in self.reader.records(begin):
            if record.end > flushed.entries and not self._has_body(record.entry):
                break
            end = record.end
            self.count += 1
            yield record.at_s, record.entry
        if lost := self._entries.size - end:
            log.warning(
                "%s: %d bytes from byte %d on are incomplete; they were never acknowledged and are truncated",
                self._entries.path,
                lost,
                end,
            )
            self._entries.cut(end)

    def _has_body(self, entry: Entry) -> bool:
        """Whether the body of an entry, if it has one, is intact or was deleted since."""
        place = entry.body if isinstance(entry, Pushed) else None
        if place is None or self.reader.has_body(place):
            return True
        deleted = not self._path(place.segment).exists()
        return deleted and place.segment < self._segment

    def _check_bodies(self) -> None:
        """Fail if flushed bodies are missing; those of older files may have been deleted."""
        flushed, newest = read_flushed(self.path), self._path(self._segment)
        if flushed.segment < self._segment:
            return
        size = newest.stat().st_size if newest.exists() else 0
        if flushed.segment > self._segment or size < flushed.bodies:
            raise RunFailed(
                f"{self._path(flushed.segment)} ends at byte {size}, and {flushed.bodies} bytes had been flushed "
                "to the disk. Restore the file, or begin a new run from a checkpoint"
            )

    # -- writing ---------------------------------------------------------------------------------

    def write(self, *entries: Entry) -> None:
        """Add entries, in one write."""
        self.count += len(entries)
        now = self._clock()
        pieces = [piece for entry in entries for piece in encode_record(entry, now)]
        if self._bodies.holds:
            self._entries.hold(*pieces)
        else:
            self._entries.append(*pieces)

    def keep(self, body: bytes | memoryview) -> BodyLocation:
        """Add a body, before the entry that names it."""
        if self._bodies.size >= self._segment_bytes and not self._bodies.holds:
            self._begin_segment()
        place = BodyLocation(
            self._segment, self._bodies.size, len(body), xxhash.xxh3_64_intdigest(body)
        )
        self._bodies.append(body)
        return place

    def _begin_segment(self) -> None:
        """Continue in a new file of bodies, or in the same one if the disk has no room for it."""
        path = self._path(self._segment + 1)
        try:
            bodies = AppendFile(path)
        except NoRoom:
            return
        try:
            flush_folder(self.path)
        except OSError as error:
            bodies.close()
            path.unlink()
            if not is_full(error, self.path):
                raise RunFailed(f"{self.path} cannot be written: {error.strerror}") from error
            return
        with self._changing:
            self._full.append(self._bodies)
            self._segment += 1
            self._bodies = bodies

    def write_held(self) -> bool:
        """Write the data held in memory; returns whether all of it is written now."""
        return self._bodies.write_held() and self._entries.write_held()

    @property
    def size(self) -> int:
        """Bytes of the log."""
        return self._entries.size

    @property
    def trouble(self) -> str:
        """Why entries or bodies are held in memory; empty if none are."""
        return self._bodies.trouble or self._entries.trouble

    def segments(self) -> list[int]:
        """Numbers of the files of bodies."""
        return sorted(int(path.stem[7:]) for path in self.path.glob("bodies-*.bin"))

    @property
    def segment(self) -> int:
        """The number of the file of bodies that is being written."""
        return self._segment

    def prune(self, needed: Collection[int]) -> None:
        """Delete the files of bodies that are neither needed, nor recorded, nor being written."""
        segments = self.segments()
        kept = {self._segment, *needed, *self._recorded(segments)}
        for segment in segments:
            if segment not in kept:
                self._path(segment).unlink()
        for file in [file for file in self._full if not file.path.exists()]:
            self._full.remove(file)
            file.close()

    def _recorded(self, segments: list[int]) -> Iterator[int]:
        """The first files of bodies without a gap, as far as they are within the bytes that are recorded."""
        left = self._recorded_bytes
        for expected, segment in enumerate(segments):
            left -= self._path(segment).stat().st_size
            if segment != expected or left < 0:
                return
            yield segment

    def sync(self) -> None:
        """Flush everything to the disk, so that it also survives power loss, and record how much
        that is. Thread-safe.
        """
        with self._flushing:
            with self._changing:
                full, self._full = self._full, []
                bodies, segment = self._bodies, self._segment
                # In this order: an entry is recorded as flushed only after its body.
                written, held = self._entries.size, self._entries.holds
                mark = Flushed(written, segment, bodies.size)
                held = held or bodies.holds
            for file in full:
                file.sync()
                file.close()
            bodies.sync()
            self._entries.sync()
            if held:
                return
            try:
                self._flushed.write(mark)
            except OSError as error:
                if not is_full(error, self.path):
                    raise RunFailed(f"{self.path} cannot be written: {error.strerror}") from error

    def close(self) -> None:
        """Flush everything to the disk and close the files."""
        self.write_held()
        self.sync()
        self._bodies.close()
        self._entries.close()

    def _path(self, segment: int) -> Path:
        return self.reader.bodies(segment)


def flush_folder(path: Path) -> None:
    """Flush the folder, so that new files survive power loss."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
