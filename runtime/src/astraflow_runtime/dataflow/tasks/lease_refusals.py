"""Whether a RaaS gets a training task now, and if not, why. The only place that decides this."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import NamedTuple, Protocol

from astraflow_runtime.dataflow.capacity import CapacityDemand, Running, full, has_room
from astraflow_runtime.dataflow.fleet.raas import RaasRecord
from astraflow_runtime.dataflow.progress import Progress, RunState
from astraflow_runtime.dataflow.tasks.queue import TaskRecord


class Queue(Running, Protocol):
    """The tasks of training."""

    def first(self, raas: str = "") -> TaskRecord | None:
        """The task that is leased next, to ``raas`` if one is named."""


class Rollouts(Protocol):
    """What the decision reads of a run, real or simulated. ``held_back``: why no new task is
    leased, if so; ``prompts_held_by``: the data policy that holds back prompts now, if one does.
    """

    max_staleness: int
    group_size: int

    @property
    def progress(self) -> Progress: ...
    @property
    def newest(self) -> Mapping[str, int]: ...
    @property
    def train(self) -> Queue: ...
    @property
    def expected(self) -> Mapping[str, float]: ...
    @property
    def held_back(self) -> str: ...
    @property
    def prompts_held_by(self) -> str: ...
    def live_streams(self) -> Collection[CapacityDemand]: ...


class WaitReason(NamedTuple):
    """What a RaaS waits for (``for_whom``), and why (``what``)."""

    for_whom: str
    what: str


class LeaseRefusal(partial[WaitReason]):
    """No task now. Call it for the reason as text, which is built only for messages, not for
    leasing.
    """

    @property
    def all_leased(self) -> bool:
        """Whether nothing else may run than what is leased."""
        return self.func in (_bound_reached, _prompts_held)


def lease_refusal(
    state: Rollouts, record: RaasRecord | None = None, free: int = 0
) -> LeaseRefusal | None:
    """Why the RaaS gets no task for its ``free`` slots; ``None`` if it gets the next one. Without a
    ``record``: why no RaaS gets one.
    """
    if state.progress.state is not RunState.RUNNING:
        return LeaseRefusal(_not_running, state)
    task, behind = state.train.first(record.name if record is not None else ""), None
    if record is not None and not record.stays:
        return LeaseRefusal(_no_more, record)
    if state.held_back:
        return LeaseRefusal(_blocked_by, state)
    if record is not None:
        needed = min(task.missing if task is not None else state.group_size, record.capacity)
        if free < needed:
            return LeaseRefusal(_too_few_places, record, needed, free)
        behind = record.behind(state.newest)
        if behind is None or not record.caught_up or max(behind.values()) > state.max_staleness:
            return LeaseRefusal(_outdated, state, record)
    live = state.live_streams()
    if not live:
        return LeaseRefusal(_no_trainer)
    if not has_room(live, state.train, state.expected, behind):
        return LeaseRefusal(_bound_reached, state, behind)
    if task is None and (holder := state.prompts_held_by):
        return LeaseRefusal(_prompts_held, holder)
    return None


def _not_running(state: Rollouts) -> WaitReason:
    return WaitReason("run", f"the run is {state.progress.state.value}")


def _blocked_by(state: Rollouts) -> WaitReason:
    return WaitReason("disk space for new tasks", state.held_back)


def _no_trainer() -> WaitReason:
    return WaitReason("trainers", "no trainer is taking batches")


def _no_more(record: RaasRecord) -> WaitReason:
    if record.draining:
        return WaitReason(
            "run", "it is draining: it gets no new tasks and leaves after its running ones"
        )
    return WaitReason(f"a restart of {record.name}", f"it was set aside: {record.set_aside}")


def _outdated(state: Rollouts, record: RaasRecord) -> WaitReason:
    if record.foreign:
        what = "; ".join(record.foreign.values())
        return WaitReason("weights", f"it must discard weights that this run does not have: {what}")
    lags = {
        policy: newest - record.serving.get(policy, -1) for policy, newest in state.newest.items()
    }
    if max(lags.values()) > state.max_staleness:
        behind = ", ".join(f"{policy} by {lag}" for policy, lag in lags.items() if lag > 0)
        allowed = f"{state.max_staleness} are allowed"
        return WaitReason("weights", f"it is behind the newest versions ({behind}); {allowed}")
    first = ", ".join(f"version {version} of {policy}" for policy, version in record.floor.items())
    return WaitReason(
        "weights", f"it does not yet serve the version that was newest when it registered: {first}"
    )


def _too_few_places(record: RaasRecord, needed: int, free: int) -> WaitReason:
    return WaitReason(
        f"tasks of {record.name}",
        f"too few free slots: the next task needs {needed}, and {free} of {record.capacity} are free",
    )


def _bound_reached(state: Rollouts, behind: Mapping[str, int] | None) -> WaitReason:
    there = list(full(state.live_streams(), state.train, state.expected, behind))
    counts = ", ".join(f"{each.under_way:.0f} of {each.limit} for {each.policy}" for each in there)
    what = f"the staleness bound allows no more running sequences: {counts}"
    if behind and any(behind.values()):
        lags = ", ".join(f"{policy} by {lag}" for policy, lag in behind.items() if lag > 0)
        what += f" (one batch less for each version that it is behind: {lags})"
    return WaitReason(", ".join(f"trainer {each.policy}" for each in there), what)


def _prompts_held(holder: str) -> WaitReason:
    what = "it admits no new prompt until some running ones end"
    return WaitReason(f"data policy {holder!r}", what)
