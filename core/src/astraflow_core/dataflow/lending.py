"""Rows of one policy that wait to be borrowed by the batches of another."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from astraflow_core.dataflow.rows import Row


@dataclass(slots=True)
class LentCounts:
    """Rows lent to a policy, apart from its own: lent = trained + being trained + waiting + stale + evicted."""

    lent: int = 0
    trained: int = 0
    stale: int = 0
    evicted: int = 0


class Shelf:
    """The rows lent to one policy that it has not had yet, oldest first, at most ``capacity``. They stay rows of
    the policy that sampled them, whose buffer and counts know nothing of it."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.rows: list[Row] = []
        self.counts = LentCounts()

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def lend(self, rows: Sequence[Row]) -> None:
        """Put rows on it; the oldest beyond its capacity go."""
        self.counts.lent += len(rows)
        self.rows += rows
        self._evict(len(self.rows) - self._capacity)

    def drop_stale(self, oldest: int) -> None:
        """Drop rows with a version below ``oldest``."""
        fresh = [row for row in self.rows if row.min_version >= oldest]
        self.counts.stale += len(self.rows) - len(fresh)
        self.rows = fresh

    def take(self, arrivals: Collection[int]) -> tuple[Row, ...]:
        """Remove and return the rows with these arrival numbers, oldest first."""
        taken = tuple(row for row in self.rows if row.item.arrival in arrivals)
        self.rows = [row for row in self.rows if row.item.arrival not in arrivals]
        return taken

    def clear(self) -> None:
        """Nothing of it will be borrowed any more."""
        self._evict(len(self.rows))

    def _evict(self, count: int) -> None:
        if count > 0:
            self.counts.evicted += count
            del self.rows[:count]
