"""Second leases: a batch waits only for tasks that are leased, and a faster RaaS is free.

The task is leased to it as well, and the first result counts. Whether that shortens the wait is decided by how long groups take
at both RaaS, hardly by how long this one has taken: a rule that looked for tasks that take long would replace long answers by
new, shorter ones. RaaS of one pace therefore hardly ever get each other's tasks, unless one of them is silent.
"""

from __future__ import annotations

from collections.abc import Iterator

from astraflow_runtime.dataflow.fleet.raas import RaasRecord
from astraflow_runtime.dataflow.state import FlowState
from astraflow_runtime.dataflow.tasks.lease_refusals import lease_refusal
from astraflow_runtime.dataflow.tasks.queue import Lease, TaskRecord

GAIN = 2.0
"""How many times as long as the second result the first must be expected to take. The means of two equal RaaS differ too."""
LEAST_LEFT = 0.5
"""What remains of a group at least, as a share of the mean of its RaaS, however old it is."""
SILENT_LEFT_S = 1e9
"""The remaining work of a task of a silent RaaS: unknown."""


def remaining_s(age_s: float, group_s: float) -> float:
    """The time left of a group that has taken ``age_s`` at a RaaS where one takes ``group_s`` on average."""
    return max(group_s - age_s, LEAST_LEFT * group_s)


def second_s(age_s: float, holder_group_s: float, group_s: float) -> float:
    """How long the same group takes at another RaaS, where one takes ``group_s``: as much longer than the mean as it is
    known to take already.
    """
    return group_s * max(1.0, age_s / holder_group_s)


def second_task(state: FlowState, record: RaasRecord, free: int) -> TaskRecord | None:
    """The task that a RaaS, which can get no other for its ``free`` slots, gets in addition to the RaaS that has it: of those
    that it is expected to finish sooner, the one that is expected last.
    """
    if not _batch_waits(state) or not record.stays or not record.caught_up:
        return None
    if record.group_s is None or record.behind(state.newest) != dict.fromkeys(state.newest, 0):
        return None
    if not state.fleet.some_slower(GAIN * record.group_s):
        return None
    best, last_s = None, 0.0
    soon = {record.name, *_as_soon(state, record.group_s)}
    for task in state.train.leased():
        lease = task.lease
        if task.second is not None or lease is None or lease.raas in soon:
            continue
        if record.name in task.failed_on:
            continue
        if free < min(task.missing, record.capacity):
            continue
        left_s, own_s = _expected(state, lease, record.group_s)
        if own_s * GAIN < left_s and left_s > last_s:
            best, last_s = task, left_s
    return best


def takers(state: FlowState) -> Iterator[RaasRecord]:
    """RaaS that wait and would get a second lease if they asked now, the fastest ones only."""
    if not _batch_waits(state):
        return
    waiting = [record for record in state.fleet.live() if record.offered and record.group_s]
    waiting.sort(key=lambda record: record.group_s or 0.0)
    for record in waiting[: state.config.run.second_leases - len(state.train.twice)]:
        if second_task(state, record, record.offered) is not None:
            yield record


def _batch_waits(state: FlowState) -> bool:
    """Whether a trainer waits for a batch, and for nothing but tasks that are leased; one more may be leased twice."""
    if len(state.train.twice) >= state.config.run.second_leases or not state.train.running:
        return False
    refusal = lease_refusal(state)
    if refusal is None or not refusal.all_leased or state.train.first() is not None:
        return False
    return any(stream.starves for stream in state.live_streams())


def _as_soon(state: FlowState, group_s: float) -> set[str]:
    """The RaaS that bring any of their tasks as soon as one of ``group_s`` could: nothing remains longer than the mean, and
    nothing takes less than ``group_s``. In most pools these are all, which keeps the search short however many tasks run."""
    return {
        holder.name
        for holder in state.fleet.present()
        if holder.health == "alive" and holder.group_s and holder.group_s <= GAIN * group_s
    }


def _expected(state: FlowState, lease: Lease, group_s: float) -> tuple[float, float]:
    """Seconds until the result of a lease, and until that of another RaaS if it begins now."""
    holder = state.fleet.get(lease.raas)
    age_s = state.clock() - lease.since
    # Of a RaaS that has brought nothing yet is known that it takes as long as that.
    holder_s = max((holder.group_s if holder else None) or age_s, 1e-9)
    if holder is None or holder.health != "alive":
        return SILENT_LEFT_S, group_s
    return remaining_s(age_s, holder_s), second_s(age_s, holder_s, group_s)
