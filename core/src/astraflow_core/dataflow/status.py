"""The run as a person or a program may look at it: plain JSON values."""

from __future__ import annotations

import math
from typing import Any

from astraflow_core.dataflow.accounting import imbalances, lent_counts, row_counts, task_counts
from astraflow_core.dataflow.capacity import under_way
from astraflow_core.dataflow.fleet import RaasRecord
from astraflow_core.dataflow.rulings import nested
from astraflow_core.dataflow.state import FlowState
from astraflow_core.dataflow.stream import PolicyStream


def balance(state: FlowState) -> dict[str, Any]:
    """Both accounting invariants: the terms, and in words what does not add up."""
    return {
        "tasks": task_counts(state.train),
        "eval_tasks": task_counts(state.eval),
        "rows": {policy: row_counts(stream) for policy, stream in state.streams.items()},
        "imbalances": imbalances(state.train, state.streams),
    }


def status(state: FlowState) -> dict[str, Any]:
    """Everything about the run that its live view, its summary and its metrics show."""
    now, run, streams = state.clock(), state.config.run, state.streams
    etas = [
        state.trainers[policy].eta_s(stream.updates, run.steps)
        for policy, stream in streams.items()
    ]
    known = [eta for eta in etas if eta is not None]
    return {
        "run": run.name,
        "state": state.progress.state.value,
        "reason": state.progress.reason,
        "users_mistake": state.progress.users_mistake,
        "held_back": state.held_back,
        "seed": run.seed,
        "steps": min(stream.updates for stream in streams.values()),
        "steps_total": run.steps,
        "max_staleness": run.max_staleness,
        "elapsed_s": now - state.progress.began,
        "eta_s": max(known) if len(known) == len(etas) else None,
        "policies": {policy: _policy(state, stream) for policy, stream in streams.items()},
        "tasks": {
            **task_counts(state.train),
            "duplicates": state.train.duplicates,
            "late": state.train.late,
            "refilled": state.train.outcomes["refilled"],
            "forced": state.admission.forced,
        },
        "rejected": dict(state.rejected),
        "held_by": state.admission.held_by(state.train.live),
        "refused_prompts": dict(state.admission.chain.refused),
        "decisions": {
            place: nested(chain.decisions) for place, chain in state.chains_by_place().items()
        },
        "admission_metrics": state.admission.chain.metrics(),
        "swaps": list(state.swaps),
        "set_aside": list(state.train.set_aside),
        "epoch": state.admission.cursor.epoch,
        "cursor": state.admission.cursor.position,
        "raas": [_raas(state, record, now) for record in state.fleet.all()],
        "eval": {
            "history": list(state.evaluations.history),
            "running": state.evaluations.active.version if state.evaluations.active else None,
            "waiting": [evaluation.version for evaluation in state.evaluations.pending],
            "tasks": task_counts(state.eval),
        },
        "best_version": state.evaluations.best,
        "tokens_generated": int(state.fleet.tokens_generated),
        "tokens_trained": sum(stream.tokens_trained for stream in streams.values()),
        "max_staleness_seen": max(stream.staleness.highest_seen for stream in streams.values()),
        "samples": list(state.samples),
        "invariants_ok": not imbalances(state.train, streams),
    }


def _policy(state: FlowState, stream: PolicyStream) -> dict[str, Any]:
    now, trainer = state.clock(), state.trainers[stream.policy]
    metrics = {key: _finite(value) for key, value in trainer.metrics.items()}
    return {
        "version": state.versions.newest[stream.policy],
        "announced": _announced(state, stream.policy),
        "updates": stream.updates,
        "released": stream.released,
        "batch_sequences": stream.settings.batch_sequences,
        "buffered": len(stream.buffer),
        "in_flight": round(state.train.in_flight.get(stream.policy, 0.0)),
        "under_way": under_way(stream, state.train),
        "limit": stream.limit,
        "rows": row_counts(stream),
        "accepted": stream.rows.accepted,
        "trained": stream.rows.trained,
        "stale": stream.rows.stale,
        "evicted": stream.rows.evicted,
        "replayed": stream.rows.replayed,
        "borrowed": {"source": stream.chain.source, **lent_counts(stream)},
        "untrained": stream.rows.untrained,
        "groups_accepted": stream.groups_accepted,
        "rejected": dict(stream.reasons),
        "reward": stream.recent_reward if stream.step_reward is None else stream.step_reward,
        "recent_reward": stream.recent_reward,
        "step_reward": stream.step_reward,
        "trained_reward": stream.trained_reward,
        "tokens_trained": stream.tokens_trained,
        "metrics": metrics,
        "data_metrics": stream.chain.metrics(),
        "trainer": "failed" if trainer.failed else "here" if trainer.registered else "absent",
        "trainer_wait_fraction": trainer.wait_fraction(now),
        "max_staleness_seen": stream.staleness.highest_seen,
        "staleness": {str(lag): rows for lag, rows in sorted(stream.staleness.seen.items())},
    }


def _announced(state: FlowState, policy: str) -> dict[str, Any] | None:
    """The newest version, as its trainer announced it, if it can be fetched."""
    for message in state.versions.newer_than({}):
        if message.policy == policy:
            fields = ("policy", "version", "transport", "endpoints", "digest", "size")
            return {name: getattr(message, name) for name in fields}
    return None


def _raas(state: FlowState, record: RaasRecord, now: float) -> dict[str, Any]:
    return {
        "name": record.name,
        "state": record.health,
        "host": record.host,
        "pid": record.pid,
        "capacity": record.capacity,
        "serving": dict(record.serving),
        "pins": state.evaluations.pins(record.name),
        "running": len(state.train.held_by(record.name)),
        "running_eval": len(state.eval.held_by(record.name)),
        "metrics": {key: _finite(value) for key, value in record.metrics.items()},
        "heard_s": now - record.last_heard,
        "ready": record.caught_up,
        "draining": record.draining,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
