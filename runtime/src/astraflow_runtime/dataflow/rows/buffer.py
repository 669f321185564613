"""The buffer of one policy: fresh rows in key order, and rows served before."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from astraflow_core.types import BufferedRow
from astraflow_runtime.dataflow.rows.rows import Row

KeyFunction = Callable[[BufferedRow], tuple[float, ...]]


class RowBuffer:
    """``fresh``: never served, smallest key first, equal keys by arrival. ``kept``: served before, each row once, in
    the order in which they were served first, whatever was drawn again since; kept only if a data
    policy draws from them (``keep_served``)."""

    def __init__(self, key: KeyFunction, keep_served: bool) -> None:
        self._key, self._keep_served = key, keep_served
        self._fresh: list[tuple[tuple[float, ...], int, Row]] = []
        self.kept: list[Row] = []

    def __len__(self) -> int:
        return len(self._fresh)

    @property
    def fresh(self) -> list[Row]:
        """Rows in the order in which they would be served."""
        return [row for _, _, row in self._fresh]

    def add(self, rows: Iterable[Row]) -> None:
        """Insert rows in key order."""
        fresh, key = self._fresh, self._key
        for row in rows:
            entry = (key(row.item), row.item.arrival, row)
            if fresh and entry < fresh[-1]:
                insort(fresh, entry)
            else:
                fresh.append(entry)

    def drop_stale(self, oldest: int) -> list[Row]:
        """Drop fresh and kept rows with a version below ``oldest``; returns the fresh ones of them."""
        dropped = [row for _, _, row in self._fresh if row.item.min_version < oldest]
        if dropped:
            gone = {row.item.arrival for row in dropped}
            self._fresh = [entry for entry in self._fresh if entry[1] not in gone]
        self.kept = [row for row in self.kept if row.item.min_version >= oldest]
        return dropped

    def take_first(self, count: int) -> list[Row]:
        """Remove and return the first ``count`` fresh rows."""
        taken = [row for _, _, row in self._fresh[:count]]
        del self._fresh[:count]
        return taken

    def take(self, arrivals: set[int]) -> list[Row]:
        """The rows with these arrival numbers, fresh or kept. Fresh ones are removed; kept ones
        stay where they are.
        """
        taken = [row for _, _, row in self._fresh if row.item.arrival in arrivals]
        taken += [row for row in self.kept if row.item.arrival in arrivals]
        self._fresh = [entry for entry in self._fresh if entry[1] not in arrivals]
        return taken

    def served(self, rows: Sequence[Row]) -> None:
        """Keep rows whose update is done, so that they can be drawn again. Those served for the
        first time come last.
        """
        if self._keep_served:
            self.kept += [row for row in rows if row.item.times_served == 0]
            for row in rows:
                row.item = replace(row.item, times_served=row.item.times_served + 1)

    def arrange(self, *, keep_served: bool) -> None:
        """Sort the rows again after a change of the order; without ``keep_served`` drop those that
        were served.
        """
        self._fresh = sorted((self._key(row.item), arrival, row) for _, arrival, row in self._fresh)
        self._keep_served = keep_served
        if not keep_served:
            self.kept = []

    def evict_oldest(self, count: int) -> list[int]:
        """Drop the ``count`` fresh rows of smallest version (then arrival); returns their arrivals."""
        if count <= 0:
            return []
        oldest = sorted(self._fresh, key=lambda entry: (entry[2].min_version, entry[1]))[:count]
        gone = {entry[1] for entry in oldest}
        self._fresh = [entry for entry in self._fresh if entry[1] not in gone]
        return sorted(gone)
