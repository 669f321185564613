"""The staleness bound: enforced when a group is accepted and again when a batch is cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


class StalenessBound:
    """``limit``: the most versions that a trained token may be behind the version that its batch
    updates.

    ``seen`` counts the rows of served batches by their staleness.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.seen: Counter[int] = Counter()

    def too_stale(self, min_version: int, updated: int) -> bool:
        """Whether a row is too stale for a batch that updates version ``updated``; version 0
        counts.
        """
        return min_version < self.oldest(updated)

    def oldest(self, updated: int) -> int:
        """The oldest version allowed in a batch that updates version ``updated``."""
        return updated - self.limit

    def record(self, ages: Iterable[int]) -> None:
        """Count served rows of this age in versions."""
        self.seen.update(ages)

    @property
    def highest_seen(self) -> int:
        """The largest staleness served so far, 0 before the first row."""
        return max(self.seen, default=0)
