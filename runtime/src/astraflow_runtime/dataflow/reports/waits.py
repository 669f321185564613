"""Which process waits for which, since when, until when, and why."""

from __future__ import annotations

import msgspec

from astraflow_runtime.dataflow.progress import RunState
from astraflow_runtime.dataflow.rows.training import Training
from astraflow_runtime.dataflow.state import FlowState
from astraflow_runtime.dataflow.tasks.lease_refusals import WaitReason, lease_refusal
from astraflow_wire.status import WaitStatus

SILENT_S = 5.0
"""Seconds between two calls of a trainer after which its silence is listed as a wait."""


def _wait(who: str, for_whom: str, what: str, since_s: float, until_s: float) -> WaitStatus:
    return WaitStatus(
        who=who,
        for_whom=for_whom,
        what=what,
        since_s=round(since_s, 3),
        until_s=round(max(until_s, 0.0), 3),
    )


def waits(state: FlowState, training: Training) -> list[WaitStatus]:
    """All current waits, those that RaaS report included."""
    now, run = state.clock(), state.config.run
    found = []
    if state.progress.state is RunState.STARTING:
        since = now - state.progress.since
        for policy, version in state.versions.newest.items():
            if version < 0:
                found.append(
                    _wait(
                        "run",
                        f"trainer {policy}",
                        "its first version",
                        since,
                        run.start_deadline_s - since,
                    )
                )
    for policy, trainer in state.trainers.items():
        if trainer.waiting_since is not None:
            lacking, until = training.lacking(policy), trainer.waiting_until - now
            found.append(
                _wait(f"trainer {policy}", "rollouts", lacking, now - trainer.waiting_since, until)
            )
        stream, silent = state.streams[policy], now - trainer.last_heard
        batch = stream.outstanding
        if batch is not None:
            found.append(
                _wait("dataflow", f"trainer {policy}", f"its update from {batch.id}", silent,
                      run.give_up_after_s - silent)
            )  # fmt: skip
        elif trainer.must_call and not stream.done and silent >= SILENT_S:
            found.append(
                _wait("dataflow", f"trainer {policy}", "its next call", silent,
                      run.give_up_after_s - silent)
            )  # fmt: skip
    found += _recoveries(state, now)
    for task in state.train.twice.values():
        assert task.lease is not None and task.second is not None
        lease, other = task.lease, task.second.raas
        what = f"its group: {other} works on it as well, since it may be sooner than {lease.raas}"
        either, until = f"{lease.raas} or {other}", lease.limit - now
        found.append(_wait(f"task {task.id}", either, what, now - lease.since, until))
    for record in state.fleet.all():
        silent = now - record.last_heard
        if record.health in ("suspect", "gone") and silent < run.give_up_after_s:
            gone = record.health == "gone"
            what = "a heartbeat" + ("; its tasks returned to the queue" if gone else "")
            found.append(_wait("dataflow", record.name, what, silent, run.give_up_after_s - silent))
    for record in state.fleet.present():
        if record.draining:
            held = len(state.train.held_by(record.name)) + len(state.eval.held_by(record.name))
            since = now - (record.draining_since or now)
            what = f"its last {held} tasks before it leaves"
            found.append(_wait("run", record.name, what, since, run.episode_deadline_s))
        if record.waiting_since is not None:
            since = now - record.waiting_since
            refusal = lease_refusal(state, record, record.offered)
            words = refusal() if refusal else _next_task_wait(state)
            found.append(_wait(record.name, *words, since, run.deadline_s))
        found.extend(msgspec.convert(record.waits, list[WaitStatus], from_attributes=True))
    for evaluation in state.evaluations.all_waiting:
        who, since = f"evaluation of version {evaluation.version}", now - evaluation.due_at
        if evaluation is state.evaluations.active:
            what = f"the results of {state.eval.live} prompts"
            found.append(_wait(who, evaluation.host or "a RaaS", what, since, run.deadline_s))
        else:
            first = f"evaluation of version {state.evaluations.all_waiting[0].version}"
            found.append(_wait(who, first, "its turn", since, run.deadline_s))
    return found


def _recoveries(state: FlowState, now: float) -> list[WaitStatus]:
    """Trainers that have lost their state and ask for the weights of a version."""
    found = []
    for policy, recovery in state.recoveries.items():
        who, since = f"trainer {policy}", now - recovery.since
        present = [raas.name for raas in state.fleet.present()]
        if now < recovery.until and (missing := recovery.missing(present)):
            what = "an offer of its version, since the trainer has lost its state"
            found.append(_wait(who, ", ".join(missing), what, since, recovery.until - now))
        else:
            what = "its next call, with the weights of a version"
            left = state.config.run.give_up_after_s - since
            found.append(_wait("dataflow", who, what, since, left))
    return found


def _next_task_wait(state: FlowState) -> WaitReason:
    """The wait of a RaaS that may lease its next task."""
    if state.admission.refused_in_a_row and not state.train.queued:
        refused = f"the data policies refused the last {state.admission.refused_in_a_row}"
        return WaitReason("a prompt", refused)
    return WaitReason("dataflow", "its next task, which is available")
