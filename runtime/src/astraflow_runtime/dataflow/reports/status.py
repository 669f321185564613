"""The status of the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import msgspec

from astraflow_core.types import Announcement
from astraflow_runtime.dataflow.capacity import under_way
from astraflow_runtime.dataflow.fleet.raas import RaasRecord
from astraflow_runtime.dataflow.journal.steplog import finite
from astraflow_runtime.dataflow.policies.decisions import nested
from astraflow_runtime.dataflow.reports.accounting import imbalances, row_counts, task_counts
from astraflow_runtime.dataflow.rows.stream import PolicyStream
from astraflow_runtime.dataflow.state import FlowState
from astraflow_wire.policy_status import EpisodeMean, LentStatus, PolicyStatus, RowStatus
from astraflow_wire.status import (
    BestVersion,
    EvaluationResult,
    EvaluationStatus,
    GivenUpTask,
    GroupSample,
    PolicySwap,
    PoolStatus,
    RaasStatus,
    SetOverlap,
    Status,
    TaskCounts,
    TaskStatus,
    WaitStatus,
)


def balance(state: FlowState) -> dict[str, Any]:
    """Both accounting invariants: the terms, and as text those that do not hold."""
    return {
        "tasks": task_counts(state.train),
        "eval_tasks": task_counts(state.eval),
        "rows": {policy: row_counts(stream) for policy, stream in state.streams.items()},
        "imbalances": imbalances(state.train, state.streams),
    }


def status(state: FlowState, pool: PoolStatus, waits: list[WaitStatus]) -> Status:
    """The status that the live view, the summary and the metrics of a run show."""
    now, run, streams, cursor = (
        state.clock(),
        state.config.run,
        state.streams,
        state.admission.cursor,
    )
    return Status(
        run=run.name,
        state=state.progress.state.value,
        reason=state.progress.reason,
        users_mistake=state.progress.users_mistake,
        held_back=state.held_back,
        seed=run.seed,
        steps=min(stream.updates for stream in streams.values()),
        steps_total=run.steps,
        max_staleness=run.max_staleness,
        elapsed_s=now - state.progress.began,
        eta_s=_eta_s(state),
        policies={policy: _policy(state, stream) for policy, stream in streams.items()},
        tasks=TaskStatus(
            **task_counts(state.train),
            duplicates=state.train.duplicates,
            late=state.train.late,
            refilled=state.train.outcomes["refilled"],
            leased_again=state.train.leased_again,
            second_won=state.train.second_won,
            forced=state.admission.forced,
        ),
        rejected=dict(state.rejected),
        environment_failures=dict(state.failures.environments),
        quarantined=len(state.admission.quarantined),
        held_by=state.prompts_held_by,
        refused_prompts=dict(state.admission.chain.refused),
        decisions={
            place: nested(chain.decisions) for place, chain in state.chains_by_place().items()
        },
        admission_metrics=finite(state.admission.chain.metrics()),
        swaps=msgspec.convert(state.swaps, list[PolicySwap]),
        set_aside=msgspec.convert(state.train.set_aside, list[GivenUpTask]),
        epoch=cursor.epoch,
        cursor=cursor.position,
        raas=[_raas(state, record, now) for record in state.fleet.all()],
        pool=pool,
        eval=_evaluations(state),
        best_version=msgspec.convert(state.evaluations.best, BestVersion | None),
        tokens_generated=int(state.fleet.tokens_generated),
        tokens_trained=sum(stream.tokens_trained for stream in streams.values()),
        max_staleness_seen=max(stream.staleness.highest_seen for stream in streams.values()),
        samples=msgspec.convert(list(state.samples), list[GroupSample]),
        invariants_ok=not imbalances(state.train, streams),
        waits=waits,
    )


def _eta_s(state: FlowState) -> float | None:
    """The estimate for the slowest policy, once every policy has one."""
    etas = [
        state.trainers[policy].eta_s(stream.updates, state.config.run.steps)
        for policy, stream in state.streams.items()
    ]
    known = [eta for eta in etas if eta is not None]
    return max(known) if len(known) == len(etas) else None


def _policy(state: FlowState, stream: PolicyStream) -> PolicyStatus:
    now, trainer = state.clock(), state.trainers[stream.policy]
    figures = stream.statistics
    step = asdict(figures.last) | {"pass_rates": _means(figures.last.pass_rates)}
    return PolicyStatus(
        version=state.versions.newest[stream.policy],
        announced=_announced(state, stream.policy),
        updates=stream.updates,
        released=stream.released,
        recoveries=trainer.recoveries,
        batch_sequences=stream.settings.batch_sequences,
        buffered=len(stream.buffer),
        in_flight=round(state.train.in_flight.get(stream.policy, 0.0)),
        under_way=under_way(stream, state.train),
        limit=stream.limit,
        rows=RowStatus(**row_counts(stream)),
        accepted=stream.rows.accepted,
        trained=stream.rows.trained,
        stale=stream.rows.stale,
        evicted=stream.rows.evicted,
        replayed=stream.rows.replayed,
        borrowed=LentStatus(source=stream.row_source.policy, **stream.source_counts),
        untrained=stream.rows.untrained,
        groups_accepted=stream.groups_accepted,
        rejected=dict(stream.reasons),
        equal_groups=stream.watch.equal,
        fruitless_groups=stream.watch.fruitless,
        reward=figures.recent_reward if figures.reward is None else figures.reward,
        recent_reward=figures.recent_reward,
        step_reward=figures.reward,
        trained_reward=stream.trained_reward,
        **step,
        episodes=stream.episode_means.episodes,
        episode_metrics=_means(stream.episode_means.last),
        tokens_trained=stream.tokens_trained,
        metrics=finite(trainer.metrics),
        data_metrics=finite(stream.chain.metrics()),
        trainer="failed" if trainer.failed else "here" if trainer.registered else "absent",
        trainer_wait_fraction=trainer.wait_fraction(now),
        max_staleness_seen=stream.staleness.highest_seen,
        staleness={str(lag): rows for lag, rows in sorted(stream.staleness.seen.items())},
    )


def _means(figures: Mapping[str, Mapping[str, float]]) -> dict[str, EpisodeMean]:
    return msgspec.convert(figures, dict[str, EpisodeMean])


def _announced(state: FlowState, policy: str) -> Announcement | None:
    """The newest version as announced by its trainer, if it can be fetched."""
    for message in state.versions.newer_than({}):
        if message.policy == policy:
            return msgspec.convert(message, Announcement, from_attributes=True)
    return None


def _evaluations(state: FlowState) -> EvaluationStatus:
    evaluations = state.evaluations
    return EvaluationStatus(
        history=msgspec.convert(evaluations.history, list[EvaluationResult]),
        running=evaluations.active.version if evaluations.active else None,
        waiting=[evaluation.version for evaluation in evaluations.pending],
        tasks=TaskCounts(**task_counts(state.eval)),
        overlap=msgspec.convert(state.overlap.counts(), dict[str, SetOverlap]),
    )


def _raas(state: FlowState, record: RaasRecord, now: float) -> RaasStatus:
    return RaasStatus(
        name=record.name,
        state=record.health,
        host=record.host,
        pid=record.pid,
        capacity=record.capacity,
        serving=dict(record.serving),
        pins=dict(state.evaluations.pins(record.name)),
        running=len(state.train.held_by(record.name)),
        running_eval=len(state.eval.held_by(record.name)),
        metrics=finite(record.metrics),
        heard_s=now - record.last_heard,
        ready=record.caught_up,
        draining=record.draining,
        set_aside=record.set_aside,
    )
