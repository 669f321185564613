"""The one reader of a run's journal; listeners get each entry.

It finds the journal, the end of its log (:mod:`astraflow_runtime.dataflow.journal.entry_log`) and
decodes the entries, so that a listener only handles them. It neither locks nor changes anything:
the dataflow may be writing the same journal.
:class:`~astraflow_runtime.dataflow.replay.JournalReplay` is the listener that applies the entries
to the state of a dataflow; a listener called after it may read that state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import xxhash

from astraflow_core.errors import RunFailed, UserError
from astraflow_runtime.dataflow.journal.entries import BodyLocation, Entry
from astraflow_runtime.dataflow.journal.entry_log import ENTRIES, JournalRecord, read_records

FOLDER = "journal"
"""The folder of the journal in the directory of its run."""


class JournalListener(Protocol):
    """Gets the entries of a journal, one after the other."""

    def on_entry(self, at_s: float, entry: Entry) -> None:
        """Handle an entry that was written ``at_s`` seconds into the run."""


def feed(entries: Iterable[tuple[float, Entry]], *listeners: JournalListener) -> int:
    """Pass each entry to all ``listeners``, in their order, before the next entry is read; returns
    the number of entries.
    """
    count = 0
    for at_s, entry in entries:
        count += 1
        for listener in listeners:
            listener.on_entry(at_s, entry)
    return count


class JournalReader:
    """Reads the journal in ``directory``, up to what is written when it is read."""

    def __init__(self, directory: Path) -> None:
        self.path = directory

    @staticmethod
    def of_run(directory: Path) -> JournalReader:
        """The reader of the run in ``directory``; :class:`UserError` if that has no journal."""
        reader = JournalReader(directory / FOLDER)
        if not reader.log.exists():
            raise UserError(
                f"the run in {directory} has no journal ({reader.log} is missing): it has not started, or it has "
                "[journal] enabled = false"
            )
        return reader

    @property
    def log(self) -> Path:
        """The file of the entries."""
        return self.path / ENTRIES

    def records(self, begin: int = 0) -> Iterator[JournalRecord]:
        """All entries in order, from byte ``begin`` of the log, the end of another record, up to the first incomplete one, decoded one at a time.
        :class:`RunFailed` if a flushed entry is damaged, or is of a kind that this version does not
        know.
        """
        return read_records(self.log, begin)

    def entries(self) -> Iterator[tuple[float, Entry]]:
        """(seconds of the run, entry) of :meth:`records`."""
        return ((record.at_s, record.entry) for record in self.records())

    def feed(self, *listeners: JournalListener) -> int:
        """:func:`feed` the whole journal to ``listeners``."""
        return feed(self.entries(), *listeners)

    def body(self, place: BodyLocation) -> bytes:
        """The group at ``place``, as it was pushed; :class:`RunFailed` if it is missing or damaged."""
        content = self._read(place)
        if xxhash.xxh3_64_intdigest(content) != place.digest:
            path = self.bodies(place.segment)
            raise RunFailed(f"{path}: the group at byte {place.offset} is damaged")
        return content

    def has_body(self, place: BodyLocation) -> bool:
        """Whether the file of bodies exists and contains the group undamaged."""
        if not self.bodies(place.segment).exists():
            return False
        return xxhash.xxh3_64_intdigest(self._read(place)) == place.digest

    def bodies(self, segment: int) -> Path:
        """The path of the file of bodies number ``segment``."""
        return self.path / f"bodies-{segment:08d}.bin"

    def _read(self, place: BodyLocation) -> bytes:
        path = self.bodies(place.segment)
        try:
            with path.open("rb") as file:
                file.seek(place.offset)
                return file.read(place.size)
        except OSError as error:
            raise RunFailed(f"{path} cannot be read: {error.strerror}") from error
