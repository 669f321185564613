"""Spans of prompts, read from the journal of a run as it grows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from astraflow_core.errors import RunFailed, UserError
from astraflow_runtime.dataflow.journal.entries import Acknowledged
from astraflow_runtime.dataflow.journal_reader import JournalReader
from astraflow_runtime.launch.results.metrics import FILE, MetricsStep, read_line
from astraflow_runtime.launch.tracking.lines import LineTail
from astraflow_runtime.launch.tracking.prompt_spans import PromptSpans
from astraflow_trackers.records import SpanRecord

SPANS_AT_ONCE = 2000
TRACES_HELD = 1000
WRITTEN_S = 2.0
"""Longest between an update in the journal and its line in the metrics."""


class SpanFeed:
    """Of a ``share`` of the prompts. ``position``: byte of the journal up to which its spans were sent by an earlier start of
    the run; as they are sent it follows."""

    def __init__(self, directory: Path, share: float, position: int) -> None:
        self._directory, self._share = directory, share
        self._sent, self._read, self.position = position, 0, position
        self._spans = PromptSpans(directory.name, share)
        self._times = UpdateTimes(directory)
        self._offset: float | None = None
        self._held: list[list[SpanRecord]] = []

    def new(self) -> list[SpanRecord]:
        """The next spans, whole traces, with times since 1970; empty if there are none yet."""
        if self._share <= 0:
            return []
        found: list[SpanRecord] = []
        for at_s, end, ack in self._records():
            self._held += list(self._spans.take_finished()) if end > self._sent else []
            self._spans.finished.clear()
            if ack is not None and (wall := self._times.next(ack.message.policy)) is not None:
                self._offset = wall - at_s
                found += self._placed()
                self.position = max(end, self._sent)
            del self._held[:-TRACES_HELD]
            if len(found) >= SPANS_AT_ONCE:
                break
        return found

    def last(self) -> None:
        """The run has ended: nothing gives a better time to what is held."""
        self._times.wait_s = 0.0

    def _records(self) -> Iterator[tuple[float, int, Acknowledged | None]]:
        try:
            for record in JournalReader.of_run(self._directory).records(self._read):
                self._read = record.end
                self._spans.on_entry(record.at_s, record.entry)
                ack = record.entry if isinstance(record.entry, Acknowledged) else None
                yield record.at_s, record.end, ack
        except (UserError, RunFailed, FileNotFoundError):  # none yet, or the run itself fails by it
            return

    def _placed(self) -> Iterator[SpanRecord]:
        """What is held, in the time of the clock on the wall."""
        assert self._offset is not None
        for span in (span for trace in self._held for span in trace):
            span["start_s"] += self._offset
            span["end_s"] += self._offset
            yield span
        self._held = []


class UpdateTimes:
    """When the updates of each policy were done, by ``metrics.jsonl``, in their order: what the journal counts in seconds of the
    run."""

    def __init__(self, directory: Path) -> None:
        self._tail = LineTail(directory / FILE)
        self._times: dict[str, list[float]] = {}
        self.wait_s = WRITTEN_S

    def next(self, policy: str) -> float | None:
        """Of the next update of the policy; ``None`` if it is not there after a while."""
        until = time.monotonic() + self.wait_s
        while not self._times.get(policy):
            self._look()
            if self._times.get(policy) or time.monotonic() > until:
                break
            time.sleep(0.05)
        waiting = self._times.get(policy)
        return waiting.pop(0) if waiting else None

    def _look(self) -> None:
        for line in self._tail.new():
            try:
                _, read = read_line(line)
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
            if isinstance(read, MetricsStep):
                self._times.setdefault(read.policy, []).append(read.time)
