"""Row sources: rows of a batch that another policy of the run sampled, for the data policy that
takes them (:class:`~astraflow_core.protocols.data_policy.Borrow`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from astraflow_core.errors import PluginError, RunFailed
from astraflow_runtime.dataflow.policies.pipeline import PolicyPipeline, naming_policy
from astraflow_runtime.dataflow.rows.rows import Row


@dataclass(frozen=True, slots=True)
class SourcedRows:
    """The ``rows`` of a batch that the policy ``source`` sampled, whose newest version was ``version`` then."""

    source: str = ""
    version: int = -1
    rows: tuple[Row, ...] = ()

    @property
    def ages(self) -> list[int]:
        """The age of each row, in versions of the source."""
        return [self.version - row.min_version for row in self.rows]

    @property
    def arrivals(self) -> list[int]:
        """Their numbers in the stream of the source."""
        return [row.item.arrival for row in self.rows]


NO_ROWS = SourcedRows()


@dataclass(slots=True)
class SourcedCounts:
    """Rows of the source by their state here: lent = trained + being trained + waiting + stale +
    evicted.
    """

    lent: int = 0
    trained: int = 0
    stale: int = 0
    evicted: int = 0


class RowSource:
    """Gives the batches of a policy, of ``count`` rows each, rows of another policy, if a data
    policy of the ``chain`` takes some. ``waiting`` has the rows that were accepted for the other
    policy and not taken yet, oldest first, at most those of ``max_staleness`` + 1 batches. They
    remain rows of that policy, and do not affect its buffer and counts. ``underfilled``: the last
    batch got fewer rows than the data policy takes.
    """

    def __init__(self, chain: PolicyPipeline, count: int, max_staleness: int) -> None:
        self._chain, self._count, self._max_staleness = chain, count, max_staleness
        self.waiting: list[Row] = []
        self.counts = SourcedCounts()
        self.underfilled = False

    @property
    def policy(self) -> str:
        """The policy that sampled the rows; empty if none are taken."""
        taking = self._chain.borrowing
        return str(taking.component.source) if taking else ""

    @property
    def most(self) -> int:
        """The most rows of a batch that are taken from here."""
        if (taking := self._chain.borrowing) is None:
            return 0
        with naming_policy(taking, "most"):
            most: int = taking.component.most(self._count)
        if not 0 <= most <= self._count:
            raise RunFailed(
                f"data policy {taking.name!r} wants to borrow {most} of {self._count} rows; expected 0 to {self._count}"
            )
        return most

    @property
    def available(self) -> int:
        """The number of rows that the next batch can take from here."""
        return min(self.most, len(self.waiting))

    @property
    def exclusive(self) -> bool:
        """Whether all rows of a batch come from this source, so that the policy has none of its own."""
        return self._chain.borrowing is not None and self.most == self._count

    def add(self, rows: Sequence[Row]) -> None:
        """Add accepted rows of the source; the oldest beyond the limit are dropped."""
        self.counts.lent += len(rows)
        self.waiting += rows
        self._evict(len(self.waiting) - (self._max_staleness + 1) * self._count)

    def choose(self, version: int, newest: int) -> SourcedRows:
        """The rows for the batch that updates ``version``; they stay here until it is served.
        ``newest``: the newest version of the source, by which rows that are too old are dropped.
        """
        if (taking := self._chain.borrowing) is None:
            return NO_ROWS
        self._drop_stale(newest - min(int(taking.component.max_age), self._max_staleness))
        offered, most = [row.item for row in self.waiting], self.most
        with naming_policy(taking, "borrow"):
            chosen = taking.component.borrow(self._count, offered, version)
        arrivals, there = [row.arrival for row in chosen], {row.arrival for row in offered}
        if len({*arrivals}) != len(arrivals) or len(arrivals) > most or not there >= {*arrivals}:
            raise RunFailed(
                f"data policy {taking.name!r} borrowed {len(arrivals)} rows, {len(there.intersection(arrivals))} "
                f"distinct ones of the {len(offered)} offered; expected at most {most} of these, each once"
            )
        self.underfilled = len(arrivals) < most
        self._chain.count(taking, "borrow", "too few lent" if self.underfilled else "borrowed")
        if not arrivals:
            return NO_ROWS
        taken = tuple(row for row in self.waiting if row.item.arrival in arrivals)
        return SourcedRows(self.policy, newest, taken)

    def take(self, chosen: SourcedRows) -> None:
        """Remove the rows of a batch that is served."""
        gone = set(chosen.arrivals)
        self.waiting = [row for row in self.waiting if row.item.arrival not in gone]

    def rearrange(self) -> None:
        """The data policies changed: drop the rows of a policy that is no longer the source."""
        if any(row.policy != self.policy for row in self.waiting):
            self.clear()

    def clear(self) -> None:
        """Drop all rows: none will be taken any longer."""
        self._evict(len(self.waiting))

    def by_state(self, being_trained: int) -> dict[str, int]:
        """Rows of the source by state; ``lost`` must be 0."""
        counts = {
            "trained": self.counts.trained,
            "being_trained": being_trained,
            "waiting": len(self.waiting),
            "stale": self.counts.stale,
            "evicted": self.counts.evicted,
        }
        lent = self.counts.lent
        return {"lent": lent, **counts, "lost": lent - sum(counts.values())}

    def check(self, policy: str, others: Mapping[str, RowSource]) -> None:
        """:class:`PluginError` if the source of ``policy`` is not in the run or has no rows of its
        own, or if ``policy`` has no rows of its own but data policies that decide on them.
        ``others``: those of all policies of the run.
        """
        taking, source = self._chain.borrowing, others.get(self.policy)
        if taking is not None and (source is None or source is self):
            there = ", ".join(repr(other) for other in others if other != policy) or "none"
            raise PluginError(
                f"data policy {taking.name!r} of policy {policy!r} borrows rows of {self.policy!r}, which is not another "
                f"policy of this run; the others are {there}"
            )
        if source is not None and source.exclusive:
            raise PluginError(
                f"policy {policy!r} borrows rows of {self.policy!r}, which has no rows of its own "
                f"because it trains only on rows of {source.policy!r}; set source to {source.policy!r}"
            )
        if self.exclusive and (idle := self._chain.decides_on_own_rows):
            raise PluginError(
                f"all rows in the batches of {policy!r} are borrowed from {self.policy!r}, so data policy "
                f"{', '.join(map(repr, idle))} of {policy!r} would have no effect; add it to the list "
                f"of {self.policy!r}, which then applies to both, or borrow fewer rows"
            )

    def _drop_stale(self, oldest: int) -> None:
        fresh = [row for row in self.waiting if row.min_version >= oldest]
        self.counts.stale += len(self.waiting) - len(fresh)
        self.waiting = fresh

    def _evict(self, count: int) -> None:
        if count > 0:
            self.counts.evicted += count
            del self.waiting[:count]


def check_row_sources(sources: Mapping[str, RowSource]) -> None:
    """:meth:`RowSource.check` of every policy."""
    for policy, source in sources.items():
        source.check(policy, sources)
