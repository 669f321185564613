"""How much may be under way at once: over-production is prevented before it happens."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from astraflow_core.dataflow.stream import PolicyStream
from astraflow_core.dataflow.tasks import TaskTable

_ROUNDING = 1e-6


def expected_sequences(streams: Iterable[PolicyStream], group_size: int) -> dict[str, float]:
    """Policy → sequences that a task of ``group_size`` trajectories is expected to bring."""
    return {stream.policy: group_size * stream.per_trajectory for stream in streams}


def under_way(stream: PolicyStream, tasks: TaskTable) -> float:
    """Sequences of a policy that run, are buffered, or are served and not acknowledged."""
    return tasks.in_flight.get(stream.policy, 0.0) + len(stream.buffer) + stream.being_trained


def has_room(
    live: Collection[PolicyStream],
    tasks: TaskTable,
    group_size: int,
    behind: Mapping[str, int] | None = None,
) -> bool:
    """Whether one more task may be leased: for each ``live`` stream (one whose trainer is there), what is
    under way and the task's own sequences stay within ``(max_staleness + 1) × batch_sequences``.

    ``behind`` (policy → versions) says how far the RaaS that asks is behind the newest ones. Each takes a
    batch off the limit: sequences that would have their turn only when they are too stale are not begun.

    If nothing runs and no trainer has a batch or could take one, one task is let through all the same:
    a group may bring more sequences than a batch has left to fill.
    """
    if not live:
        return False
    own = expected_sequences(live, group_size)

    def fits(stream: PolicyStream) -> bool:
        lag = behind.get(stream.policy, 0) if behind else 0
        limit = stream.limit - lag * stream.settings.batch_sequences
        return under_way(stream, tasks) + own[stream.policy] <= limit + _ROUNDING

    if all(fits(stream) for stream in live):
        return True
    return tasks.running == 0 and all(_starves(stream) for stream in live)


def _starves(stream: PolicyStream) -> bool:
    if stream.outstanding is not None:
        return False
    return stream.starved or len(stream.buffer) < stream.settings.batch_sequences
