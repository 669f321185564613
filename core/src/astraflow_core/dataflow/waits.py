"""Who waits for whom, since when, until when, and because of what."""

from __future__ import annotations

from typing import Any

import msgspec

from astraflow_core.dataflow.fleet import RaasRecord
from astraflow_core.dataflow.progress import RunState
from astraflow_core.dataflow.state import FlowState
from astraflow_core.dataflow.training import Training

SILENT_S = 5.0
"""Silence of a trainer between two calls, in seconds, after which it is called a wait."""


def _wait(who: str, for_whom: str, what: str, since_s: float, until_s: float) -> dict[str, Any]:
    return {
        "who": who, "for_whom": for_whom, "what": what,
        "since_s": round(since_s, 3), "until_s": round(max(until_s, 0.0), 3),
    }  # fmt: skip


def waits(state: FlowState, training: Training) -> list[dict[str, Any]]:
    """All waits that the dataflow knows of, those that RaaS report included."""
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
                      run.patience_s - silent)
            )  # fmt: skip
        elif trainer.owes_a_sign and not stream.done and silent >= SILENT_S:
            found.append(
                _wait("dataflow", f"trainer {policy}", "its next call", silent,
                      run.patience_s - silent)
            )  # fmt: skip
    for record in state.fleet.all():
        silent = now - record.last_heard
        if record.health in ("suspect", "gone") and silent < run.patience_s:
            gone = record.health == "gone"
            what = "a sign of life" + ("; its tasks are back in the queue" if gone else "")
            found.append(_wait("dataflow", record.name, what, silent, run.patience_s - silent))
    for record in state.fleet.present():
        if record.draining:
            held = len(state.train.held_by(record.name)) + len(state.eval.held_by(record.name))
            since = now - (record.draining_since or now)
            what = f"its last {held} tasks, after which it leaves"
            found.append(_wait("run", record.name, what, since, run.episode_deadline_s))
        if record.waiting_since is not None:
            for_whom, what = _why_no_task(state, record)
            since = now - record.waiting_since
            found.append(_wait(record.name, for_whom, what, since, run.deadline_s))
        found.extend(msgspec.to_builtins(wait) for wait in record.waits)
    for evaluation in state.evaluations.all_waiting:
        who, since = f"evaluation of version {evaluation.version}", now - evaluation.due_at
        if evaluation is state.evaluations.active:
            what = f"the results of {state.eval.live} prompts"
            found.append(_wait(who, evaluation.host or "a RaaS", what, since, run.deadline_s))
        else:
            first = f"evaluation of version {state.evaluations.all_waiting[0].version}"
            found.append(_wait(who, first, "its turn", since, run.deadline_s))
    return found


def _why_no_task(state: FlowState, record: RaasRecord) -> tuple[str, str]:
    newest, limit = state.versions.newest, state.config.run.max_staleness
    if state.progress.state is not RunState.RUNNING:
        return "run", f"the run is {state.progress.state.value}"
    if record.draining:
        return "run", "it gets no new tasks and leaves when all it had have ended"
    behind = {p: v - record.serving.get(p, -1) for p, v in newest.items()}
    if not record.caught_up or any(lag > limit for lag in behind.values()):
        lags = ", ".join(f"{p} by {lag}" for p, lag in behind.items() if lag > 0)
        return "weights", f"it is behind the newest versions ({lags}); {limit} are allowed"
    if state.held_back:
        return "room on the disk", state.held_back
    if not state.live_streams():
        return "trainers", "no trainer takes batches"
    trainers = ", ".join(f"trainer {stream.policy}" for stream in state.live_streams())
    return trainers, "as many sequences are under way as the staleness bound allows"
