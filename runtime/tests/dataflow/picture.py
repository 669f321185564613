"""What tests compare of two dataflows."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from astraflow_runtime.dataflow.flow import Dataflow
from astraflow_runtime.dataflow.rows.stream import PolicyStream, ServedBatch
from astraflow_runtime.dataflow.tasks.evaluation import Evaluation
from astraflow_runtime.dataflow.tasks.queue import TaskTable


def picture(flow: Dataflow) -> dict[str, Any]:
    """All of the state that must outlive the process."""
    state = flow.state

    def batch(stream: PolicyStream, served: ServedBatch | None) -> Any:
        return served and (
            served.asked,
            served.first_served,
            served.again,
            b"".join(stream.encode(served)),
        )

    def stream(stream: PolicyStream) -> dict[str, Any]:
        held = [stream.outstanding, *stream._unreleased, *stream._to_repeat]
        return {
            "counts": asdict(stream.rows),
            "reasons": dict(stream.reasons),
            "watch": vars(stream.watch),
            "updates": (stream.updates, stream.released, stream.last_acknowledged),
            "fresh": [row.item for row in stream.buffer.fresh],
            "kept": [row.item for row in stream.buffer.kept],
            "source": (
                [row.item for row in stream.row_source.waiting],
                asdict(stream.row_source.counts),
                stream.row_source.underfilled,
            ),
            "batches": [batch(stream, served) for served in held],
            "repeats": len(stream._to_repeat),
            "seen": dict(stream.staleness.seen),
            "expected": (stream.per_trajectory, stream._arrivals, stream.groups_accepted),
            "rewards": (
                stream.statistics.recent_reward,
                stream.statistics.reward,
                stream.trained_reward,
            ),
            "figures": (asdict(stream.statistics.last), stream.statistics._means),
            "episodes": (stream.episode_means.episodes, stream.episode_means.last),
            "tokens": stream.tokens_trained,
            "policies": stream.chain.state_dict(),
        }

    def table(table: TaskTable) -> dict[str, Any]:
        return {
            "queue": [(task.id, task.attempts, task.last_error) for task in table._queue],
            "parts": [(part.group.header, part.group.tokens.tolist()) for part in table.parts],
            "leased": sorted(
                (task.id, [lease.raas for lease in task.leases], task.attempts)
                for task in table.leased()
            ),
            "again": (sorted(table.twice), table.leased_again, table.second_won),
            "ended": table._ended.columns(),
            "admitted": table.admitted,
            "in_flight": {p: round(v, 6) for p, v in table.in_flight.items() if round(v, 6)},
            "set_aside": table.set_aside,
        }

    def evaluation(evaluation: Evaluation) -> Any:
        return evaluation.versions, {k: asdict(v) for k, v in evaluation.scores.items()}

    evaluations = state.evaluations
    return {
        # Whether a stopping run has stopped follows from the processes that know of it, which are asked again.
        "state": state.progress.state.replace("stopped", "stopping"),
        "cursor": state.admission.cursor.position,
        "admission": (state.admission.forced, dict(state.admission.chain.refused)),
        "admission_policies": state.admission.chain.state_dict(),
        "decisions": {place: dict(c.decisions) for place, c in state.chains_by_place().items()},
        "swaps": state.swaps,
        "rejected": dict(state.rejected),
        "failures": sorted((r.name, r.failures, r.set_aside) for r in state.fleet.present()),
        "train": table(state.train),
        "eval": table(state.eval),
        "streams": {policy: stream(it) for policy, it in state.streams.items()},
        "versions": (dict(state.versions.newest), dict(state.versions._withdrawn)),
        "evaluations": [evaluation(it) for it in evaluations.all_waiting],
        "history": evaluations.history,
        "best": evaluations.best,
        "trainers": {
            policy: (trainer.registered, trainer.steps_done, trainer.metrics)
            for policy, trainer in state.trainers.items()
        },
        "raas": sorted((r.name, r.health in ("alive", "suspect")) for r in state.fleet.all()),
        "tokens": state.fleet.tokens_generated,
        "balance": state.balance.snapshot(),
        "pool": (flow.pool.added, flow.pool.drained),
        "overlap": state.overlap.counts(),
        "draining": sorted(r.name for r in state.fleet.present() if r.draining),
    }
