"""The persistent records of a run: the journal and ``metrics.jsonl``."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from astraflow_runtime.dataflow.journal.entries import Acknowledged, BodyLocation, Entry
from astraflow_runtime.dataflow.journal.journal import Journal
from astraflow_runtime.dataflow.journal.steplog import StepLog
from astraflow_runtime.dataflow.journal_reader import JournalReader
from astraflow_wire.host.disk import lacking

log = logging.getLogger(__name__)


class Records:
    """Writes both, or neither if the run keeps none. ``segments_needed``: the files of bodies with
    a row that may still be served. ``acknowledged`` gets each entry that has counters.
    """

    def __init__(
        self,
        steps: StepLog | None,
        segments_needed: Callable[[], set[int]],
        acknowledged: Callable[[Acknowledged], None],
    ) -> None:
        self._steps, self._segments_needed = steps, segments_needed
        self._acknowledged = acknowledged
        self._journal: Journal | None = None

    @property
    def lines(self) -> int:
        """Lines of ``metrics.jsonl`` so far, those that an earlier process has written included."""
        return self._steps.lines if self._steps is not None else 0

    def skip_lines(self, count: int) -> bool:
        """Take the first lines as written by this process; false if there are fewer."""
        return self._steps.skip(count) if self._steps is not None else count == 0

    @property
    def unwritten(self) -> str:
        """Why the end of the journal is only in memory; empty if all of it is written."""
        return self._journal.trouble if self._journal is not None else ""

    @property
    def reader(self) -> JournalReader | None:
        """Reads the bodies that were kept; ``None`` if none are, or if one may not be written yet."""
        journal = self._journal
        return journal.reader if journal is not None and not journal.trouble else None

    def begin(self, journal: Journal | None) -> None:
        """Record everything from now on in the journal, if there is one."""
        self._journal = journal
        if self._steps is not None:
            self._steps.resume()

    def append(self, *entries: Entry) -> None:
        """Append entries to the journal."""
        for entry in entries:
            if isinstance(entry, Acknowledged):
                self._acknowledged(entry)
        if self._journal is not None:
            self._journal.write(*entries)

    def keep_body(self, body: bytes | memoryview) -> BodyLocation | None:
        """Keep the body of an accepted group. Files of bodies that are no longer needed are deleted
        whenever a new one is begun."""
        if self._journal is None:
            return None
        before, place = self._journal.segment, self._journal.keep(body)
        if place.segment != before:
            self._journal.prune(self._segments_needed())
        return place

    def log(self, line: dict[str, Any]) -> None:
        """Write a line of ``metrics.jsonl``."""
        if self._steps is not None:
            self._steps.write(line)

    def sync(self) -> None:
        """Flush the journal to the disk. Thread-safe."""
        if self._journal is not None:
            self._journal.sync()

    @property
    def write_error(self) -> str:
        """What the disk has no room for, and why; empty if everything is written."""
        for file in (self._journal, self._steps):
            if file is not None and (trouble := file.trouble):
                return trouble
        return ""

    def lacking(self) -> str:
        """Why nothing else could be written to the disk now; empty if it could."""
        return lacking(self._steps.folder) if self._steps is not None else ""

    def write_held(self) -> None:
        """Write the data held in memory, as far as there is room now."""
        for file in (self._journal, self._steps):
            if file is not None:
                file.write_held()

    def close(self) -> None:
        """Close both."""
        for file in (self._journal, self._steps):
            if file is not None:
                file.close()
                if file.trouble:
                    log.error("its end could not be written: %s", file.trouble)
