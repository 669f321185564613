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
    """Sequences for the batches of a policy that run, wait, or are served and not acknowledged: its own, or those
    of the policy whose stream it shares."""
    if source := stream.shares:
        waiting = len(stream.shelf) + stream.borrowed_in_training
        return tasks.in_flight.get(source, 0.0) + waiting
    return tasks.in_flight.get(stream.policy, 0.0) + len(stream.buffer) + stream.being_trained


def has_room(
    live: Collection[PolicyStream],
    tasks: TaskTable,
    expected: Mapping[str, float],
    behind: Mapping[str, int] | None = None,
) -> bool:
    """Whether one more task may be leased: for each ``live`` stream (one whose trainer is there), what is under way
    and what is ``expected`` of the task (policy → sequences) stay within ``(max_staleness + 1) × batch_sequences``.
    A stream that shares the one of a live policy does not count: it is that policy's pace that holds.

    ``behind`` (policy → versions) says how far the RaaS that asks is behind the newest ones. Each takes a
    batch off the limit: sequences that would have their turn only when they are too stale are not begun.

    If nothing runs and no trainer has a batch or could take one, one task is let through all the same:
    a group may bring more sequences than a batch has left to fill.
    """
    there = {stream.policy for stream in live}
    counted = [stream for stream in live if stream.shares not in there]
    if not counted:
        return False

    def fits(stream: PolicyStream) -> bool:
        sampled_by = stream.shares or stream.policy
        lag = behind.get(sampled_by, 0) if behind else 0
        limit = stream.limit - lag * stream.settings.batch_sequences
        return under_way(stream, tasks) + expected[sampled_by] <= limit + _ROUNDING

    if all(fits(stream) for stream in counted):
        return True
    return tasks.running == 0 and all(_starves(stream) for stream in counted)


def _starves(stream: PolicyStream) -> bool:
    if stream.outstanding is not None:
        return False
    there = len(stream.shelf if stream.shares else stream.buffer)
    return stream.starved or there < stream.settings.batch_sequences
