"""The journal of a run: entries in order, and the bodies of accepted groups beside them.

``entries.log`` is a sequence of records (:mod:`astraflow_core.dataflow.journal_records`).
``bodies-00000000.bin`` and its successors hold push bodies, exactly as received, one after the other; a file of
which no row is needed any more is deleted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import xxhash

from astraflow_core.dataflow.append_file import AppendFile
from astraflow_core.dataflow.entries import Entry, Place
from astraflow_core.dataflow.journal_records import ENTRIES, encode_record, read_records
from astraflow_core.errors import RunFailed, UserError

SEGMENT_BYTES = 64 << 20
"""From this size on a file of bodies is followed by another."""

OTHERS_END_S = 10.0
"""How long the dataflow of a launcher that was killed may take to end."""


class Journal:
    """The journal in ``directory``, read by :meth:`entries` and then written. ``clock``: seconds of the
    run. :class:`UserError` if another process has it open."""

    def __init__(
        self, directory: Path, clock: Callable[[], float], segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFailed(f"{directory} cannot be made: {error.strerror}") from error
        self.path = directory
        self._clock, self._segment_bytes = clock, segment_bytes
        self._entries = AppendFile(directory / ENTRIES)
        if not self._entries.lock(OTHERS_END_S):
            self._entries.close()
            raise UserError(f"{directory}: another dataflow writes this journal; end it first")
        self._segment = max(self.segments(), default=0)
        self._bodies = AppendFile(self._path(self._segment))
        self._full: list[AppendFile] = []

    # -- reading ---------------------------------------------------------------------------------

    def entries(self) -> Iterator[tuple[float, Entry]]:
        """(seconds, entry) of everything that was written before, in order. A last record that is not
        whole is cut off; a whole one that is damaged raises :class:`RunFailed`."""
        path, end = self._entries.path, 0
        for seconds, entry, position in read_records(path):
            end = position
            yield seconds, entry
        if end < self._entries.size:
            os.truncate(path, end)
            self._entries.size = end

    def body(self, place: Place) -> bytes:
        """A body of before; :class:`RunFailed` if it is not there as it was written."""
        path = self._path(place.segment)
        try:
            with path.open("rb") as file:
                file.seek(place.offset)
                content = file.read(place.size)
        except OSError as error:
            raise RunFailed(f"{path} cannot be read: {error.strerror}") from error
        if xxhash.xxh3_64_intdigest(content) != place.digest:
            raise RunFailed(f"{path}: the group at byte {place.offset} is damaged")
        return content

    # -- writing ---------------------------------------------------------------------------------

    def write(self, entry: Entry) -> None:
        """Add an entry."""
        head, content = encode_record(entry, self._clock())
        if self._bodies.holds:
            self._entries.hold(head, content)
        else:
            self._entries.append(head, content)

    def keep(self, body: bytes | memoryview) -> Place:
        """Add a body, before the entry that names it."""
        if self._bodies.size >= self._segment_bytes and not self._bodies.holds:
            self._full.append(self._bodies)
            self._segment += 1
            self._bodies = AppendFile(self._path(self._segment))
        place = Place(self._segment, self._bodies.size, len(body), xxhash.xxh3_64_intdigest(body))
        self._bodies.append(body)
        return place

    def write_held(self) -> bool:
        """Write what found no room before; returns whether all of it is written now."""
        return self._bodies.write_held() and self._entries.write_held()

    @property
    def trouble(self) -> str:
        """Why entries or bodies are kept in memory; empty if they are not."""
        return self._bodies.trouble or self._entries.trouble

    def segments(self) -> list[int]:
        """Numbers of the files of bodies."""
        return sorted(int(path.stem[7:]) for path in self.path.glob("bodies-*.bin"))

    @property
    def segment(self) -> int:
        """The file of bodies that is written now."""
        return self._segment

    def prune(self, needed: Collection[int]) -> None:
        """Delete the files of bodies that are neither needed nor written."""
        for segment in self.segments():
            if segment != self._segment and segment not in needed:
                self._path(segment).unlink()
        for file in [file for file in self._full if not file.path.exists()]:
            self._full.remove(file)
            file.close()

    def sync(self) -> None:
        """Put everything on the disk, so that it survives power loss too. Any thread may call it."""
        full, self._full = self._full, []
        for file in full:
            file.sync()
            file.close()
        self._bodies.sync()
        self._entries.sync()

    def close(self) -> None:
        """Put everything on the disk and close the files."""
        self.write_held()
        self.sync()
        self._bodies.close()
        self._entries.close()

    def _path(self, segment: int) -> Path:
        return self.path / f"bodies-{segment:08d}.bin"
