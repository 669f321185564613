"""How much may be under way at once: over-production is prevented before it happens."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from astraflow_core.dataflow.stream import PolicyStream
from astraflow_core.dataflow.tasks import TaskTable

_ROUNDING = 1e-6


def expected_sequences(streams: Iterable[PolicyStream], group_size: int) -> dict[str, float]:
    """Policy → sequences that a task of ``group_size`` trajectories is expected to bring."""
    return {stream.policy: group_size * stream.per_trajectory for stream in streams}


def under_way(stream: PolicyStream, tasks: TaskTable) -> float:
    """Sequences of a policy that run, are buffered, or are served and not acknowledged."""
    return tasks.in_flight.get(stream.policy, 0.0) + len(stream.buffer) + stream.being_trained


def has_room(live: Collection[PolicyStream], tasks: TaskTable, group_size: int) -> bool:
    """Whether one more task may be leased: for each ``live`` stream (one whose trainer is there), what is
    under way and the task's own sequences stay within ``(max_staleness + 1) × batch_sequences``.

    If nothing runs and no trainer has a batch or could take one, one task is let through all the same:
    a group may bring more sequences than a batch has left to fill.
    """
    if not live:
        return False
    own = expected_sequences(live, group_size)
    if all(under_way(s, tasks) + own[s.policy] <= s.limit + _ROUNDING for s in live):
        return True
    return tasks.running == 0 and all(_starves(stream) for stream in live)


def _starves(stream: PolicyStream) -> bool:
    if stream.outstanding is not None:
        return False
    return stream.starved or len(stream.buffer) < stream.settings.batch_sequences
