"""How much may be under way at once: over-production is prevented before it happens."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from astraflow_runtime.dataflow.rows.stream import PolicyStream

_ROUNDING = 1e-6


class CapacityDemand(Protocol):
    """What the bound reads of a policy's stream, a simulated one too. ``shares``: the policy that samples all rows of
    its batches, if it is another one; ``limit``: most sequences that may be under way for them; ``pending``: those that
    wait, or are served and not acknowledged; ``starves``: its trainer has no batch and could take none."""

    @property
    def policy(self) -> str: ...
    @property
    def shares(self) -> str: ...
    @property
    def limit(self) -> int: ...
    @property
    def batch_sequences(self) -> int: ...
    @property
    def pending(self) -> int: ...
    @property
    def starves(self) -> bool: ...


class Running(Protocol):
    """What the bound reads of the tasks: how many run, and policy → sequences expected of these."""

    @property
    def running(self) -> int: ...
    @property
    def in_flight(self) -> Mapping[str, float]: ...


def expected_sequences(streams: Iterable[PolicyStream], group_size: int) -> dict[str, float]:
    """Policy → sequences that a task of ``group_size`` trajectories is expected to bring."""
    return {stream.policy: group_size * stream.per_trajectory for stream in streams}


def under_way(stream: CapacityDemand, tasks: Running) -> float:
    """Sequences for the batches of a policy that run, wait, or are served and not acknowledged: its own, or those
    of the policy whose stream it shares."""
    return tasks.in_flight.get(stream.shares or stream.policy, 0.0) + stream.pending


class Full(NamedTuple):
    """A policy that allows no more task: its sequences ``under_way``, and the ``limit`` for the RaaS that asks."""

    policy: str
    under_way: float
    limit: int


def has_room(
    live: Collection[CapacityDemand],
    tasks: Running,
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
    if next(full(live, tasks, expected, behind), None) is None:
        return True
    if tasks.running:
        return False
    there = {stream.policy for stream in live}
    return all(stream.starves for stream in live if stream.shares not in there)


def full(
    live: Collection[CapacityDemand],
    tasks: Running,
    expected: Mapping[str, float],
    behind: Mapping[str, int] | None = None,
) -> Iterator[Full]:
    """The policies that :func:`has_room` finds no room for."""
    there = {stream.policy for stream in live}
    for stream in live:
        if (source := stream.shares) in there:
            continue
        sampled_by, limit = source or stream.policy, stream.limit
        if behind and (lag := behind.get(sampled_by)):
            limit -= lag * stream.batch_sequences
        now = tasks.in_flight.get(sampled_by, 0.0) + stream.pending
        if now + expected[sampled_by] > limit + _ROUNDING:
            yield Full(stream.policy, now, limit)
