"""The capacity bound: how many sequences may be in flight at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from astraflow_runtime.dataflow.rows.stream import PolicyStream

_ROUNDING = 1e-6


class CapacityDemand(Protocol):
    """What the bound reads of a policy's stream, real or simulated. ``shares``: the policy that
    samples all rows of its batches, if it is another one; ``limit``: the most sequences that may be
    in flight for them; ``pending``: those that are buffered, or served and not acknowledged;
    ``starves``: its trainer has no batch and none is ready."""

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
    """What the bound reads of the tasks: how many run, and policy → sequences expected from them."""

    @property
    def running(self) -> int: ...
    @property
    def in_flight(self) -> Mapping[str, float]: ...


def expected_sequences(streams: Iterable[PolicyStream], group_size: int) -> dict[str, float]:
    """Policy → sequences expected from a task of ``group_size`` trajectories."""
    return {stream.policy: group_size * stream.per_trajectory for stream in streams}


def under_way(stream: CapacityDemand, tasks: Running) -> float:
    """Sequences in flight for the batches of a policy: running, buffered, or served and not
    acknowledged. Those of the policy itself, or of the one whose stream it shares.
    """
    return tasks.in_flight.get(stream.shares or stream.policy, 0.0) + stream.pending


class Full(NamedTuple):
    """A policy that allows no further task: its sequences in flight (``under_way``), and the
    ``limit`` for the RaaS that asks.
    """

    policy: str
    under_way: float
    limit: int


def has_room(
    live: Collection[CapacityDemand],
    tasks: Running,
    expected: Mapping[str, float],
    behind: Mapping[str, int] | None = None,
) -> bool:
    """Whether one more task may be leased: for each ``live`` stream (one whose trainer is present),
    the sequences in flight and those ``expected`` from the task (policy → sequences) stay within
    ``(max_staleness + 1) × batch_sequences``. A stream that shares that of a live policy is not
    counted: the pace of that policy decides.

    ``behind`` (policy → versions) says how far the RaaS that asks is behind the newest versions.
    Each version lowers the limit by a batch, so that no sequence is begun that would be too stale
    when its batch is cut.

    If nothing runs, no trainer has a batch and none is ready, one task is allowed beyond the limit:
    a group may have more sequences than a batch has left to fill.
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
    """The policies whose limit the task would exceed (:func:`has_room`)."""
    for stream in live:
        source = stream.shares
        if source and any(source == other.policy for other in live):
            continue
        sampled_by, limit = source or stream.policy, stream.limit
        if behind and (lag := behind.get(sampled_by)):
            limit -= lag * stream.batch_sequences
        now = tasks.in_flight.get(sampled_by, 0.0) + stream.pending
        if now + expected[sampled_by] > limit + _ROUNDING:
            yield Full(stream.policy, now, limit)
