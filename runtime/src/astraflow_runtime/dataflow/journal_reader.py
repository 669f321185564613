"""The one reader of a run's journal: whoever wants to know what happened listens to it.

It knows where the journal lies, where its log ends (:mod:`astraflow_runtime.dataflow.journal.entry_log`) and what an
entry is, so that a listener only says what each kind of entry means to it. It locks and changes nothing: the dataflow may
be writing the same journal. :class:`~astraflow_runtime.dataflow.replay.JournalReplay` is the listener that applies the
entries to the state of a dataflow; a listener told after it may look at that state.
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
"""Where the journal lies in the directory of its run."""


class JournalListener(Protocol):
    """Hears the entries of a journal, one after the other."""

    def hear(self, at_s: float, entry: Entry) -> None:
        """Take note of an entry that was written ``at_s`` seconds into the run."""


def tell(entries: Iterable[tuple[float, Entry]], *listeners: JournalListener) -> int:
    """Have all ``listeners`` hear each entry, in the order of their names here, before the next entry is read; returns how
    many entries there were."""
    count = 0
    for at_s, entry in entries:
        count += 1
        for listener in listeners:
            listener.hear(at_s, entry)
    return count


class JournalReader:
    """The journal in ``directory``, as far as it was written when it is read."""

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

    def records(self) -> Iterator[JournalRecord]:
        """All entries in order, up to the first that is not whole. One entry is held at a time.

        :class:`RunFailed` if an entry is damaged that was on the disk for good, or is of a kind that this version does
        not know.
        """
        return read_records(self.log)

    def entries(self) -> Iterator[tuple[float, Entry]]:
        """(seconds of the run, entry) of :meth:`records`."""
        return ((record.at_s, record.entry) for record in self.records())

    def tell(self, *listeners: JournalListener) -> int:
        """:func:`tell` the whole journal."""
        return tell(self.entries(), *listeners)

    def body(self, place: BodyLocation) -> bytes:
        """The group that lies at ``place``, as it was pushed; :class:`RunFailed` if it is not there as it was written."""
        content = self._read(place)
        if xxhash.xxh3_64_intdigest(content) != place.digest:
            path = self.bodies(place.segment)
            raise RunFailed(f"{path}: the group at byte {place.offset} is damaged")
        return content

    def has_body(self, place: BodyLocation) -> bool:
        """Whether the file of bodies is there and has the group as it was written."""
        if not self.bodies(place.segment).exists():
            return False
        return xxhash.xxh3_64_intdigest(self._read(place)) == place.digest

    def bodies(self, segment: int) -> Path:
        """The file of bodies number ``segment``."""
        return self.path / f"bodies-{segment:08d}.bin"

    def _read(self, place: BodyLocation) -> bytes:
        path = self.bodies(place.segment)
        try:
            with path.open("rb") as file:
                file.seek(place.offset)
                return file.read(place.size)
        except OSError as error:
            raise RunFailed(f"{path} cannot be read: {error.strerror}") from error
