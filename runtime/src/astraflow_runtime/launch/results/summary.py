"""``summary.json``: what a run came to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from astraflow_core.config.models import RunConfig
from astraflow_core.protocols.launcher import ProcessState
from astraflow_runtime.launch.results.held_out import described
from astraflow_runtime.launch.results.metrics import MetricsStep, rewards_of
from astraflow_wire.policy_status import PolicyStatus
from astraflow_wire.status import EvaluationResult, Status

_ENDS = 5
"""Most steps at either end that ``reward_first`` and ``reward_last`` average."""

_LAST_STEP = (
    "reward_std",
    "completion_length_mean",
    "completion_length_max",
    "truncated_fraction",
    "equal_groups_fraction",
    "pass_rate",
    "episodes",
)


def summarise(
    config: RunConfig,
    status: Status,
    steps: Sequence[MetricsStep],
    processes: Sequence[ProcessState],
) -> dict[str, Any]:
    """The figures of a run, as the dataflow counted them.

    Over several policies: ``reward_*`` are those of the first policy in the config, since rewards of
    different policies have different meanings; ``versions`` is the number of versions published after
    the initial ones and ``trainer_wait_fraction`` a mean; staleness is the largest. ``policies`` has the
    figures of each. ``processes`` counts those that the launcher started (an engine host belongs to its
    RaaS); ``process_details`` lists them. ``eval_failed``: prompts of all evaluations without a result. ``eval_overlap``: see :func:`astraflow_runtime.launch.results.held_out.described`.
    """
    policies = {
        name: _policy(
            config, name, status.policies.get(name, PolicyStatus()), steps, status.eval.history
        )
        for name in config.policies
    }
    first = next(iter(policies.values()))
    waits = [
        p["trainer_wait_fraction"]
        for p in policies.values()
        if p["trainer_wait_fraction"] is not None
    ]
    tasks = status.tasks
    return {
        "steps": status.steps,
        "steps_planned": config.run.steps,
        "reward_first": first["reward_first"],
        "reward_last": first["reward_last"],
        "eval_first": status.eval.history[0].accuracy if status.eval.history else None,
        "eval_last": status.eval.history[-1].accuracy if status.eval.history else None,
        "tokens_generated": status.tokens_generated,
        "tokens_trained": status.tokens_trained,
        "versions": sum(policy["version"] for policy in policies.values()),
        "max_staleness_seen": max(policy["max_staleness_seen"] for policy in policies.values()),
        "max_staleness_allowed": config.run.max_staleness,
        "admitted": tasks.admitted,
        "accepted": tasks.accepted,
        "rejected": tasks.rejected,
        "failed": tasks.failed,
        "set_aside": tasks.set_aside,
        "environment_failures": dict(status.environment_failures),
        "quarantined": status.quarantined,
        "lost": tasks.lost,
        "duplicated": tasks.duplicates,
        "trainer_wait_fraction": sum(waits) / len(waits) if waits else None,
        "processes": len(processes),
        "restarts": sum(state.restarts for state in processes),
        "recoveries": [
            {"policy": name, **msgspec.to_builtins(recovery)}
            for name in config.policies
            if name in status.policies
            for recovery in status.policies[name].recoveries
        ],
        "policies": policies,
        "evals": [_evaluation(entry) for entry in status.eval.history],
        "eval_failed": sum(s.failed for entry in status.eval.history for s in entry.sets.values()),
        "eval_overlap": described(config, status.eval.overlap),
        "sample": msgspec.to_builtins(status.samples[-1]) if status.samples else None,
        "process_details": [_process(state) for state in processes],
    }


def _policy(
    config: RunConfig,
    name: str,
    status: PolicyStatus,
    steps: Sequence[MetricsStep],
    evals: Sequence[EvaluationResult],
) -> dict[str, Any]:
    rewards = rewards_of(steps, name)
    ends = max(
        1, min(_ENDS, len(rewards) // 2)
    )  # of a short run neither end has steps of the other
    own = [accuracy for entry in evals if (accuracy := entry.accuracy_of(name)) is not None]
    return {
        "version": max(status.version, 0),
        "updates": status.updates,
        "reward_first": _mean(rewards[:ends]),
        "reward_last": _mean(rewards[-ends:]),
        "eval_first": own[0] if own else None,
        "eval_last": own[-1] if own else None,
        "max_staleness_seen": status.max_staleness_seen,
        "trainer_wait_fraction": status.trainer_wait_fraction,
        **{key: getattr(status, key) for key in _LAST_STEP},
        "pass_rates": msgspec.to_builtins(status.pass_rates),
        "episode_metrics": msgspec.to_builtins(status.episode_metrics),
        "rows_accepted": status.rows.accepted,
        "rows_trained": status.rows.trained,
        "rows_stale": status.rows.stale,
        "rows_evicted": status.rows.evicted,
        "model": config.policies[name].model,
    }


def _evaluation(entry: EvaluationResult) -> dict[str, Any]:
    sets = {
        name: {
            "avg": s.avg,
            "pass": s.pass_,
            "mean_reward": s.mean_reward,
            "n": s.n,
            "failed": s.failed,
            "last_error": s.last_error,
        }
        for name, s in entry.sets.items()
    }
    return {"versions": entry.versions, "sets": sets}


def _process(state: ProcessState) -> dict[str, Any]:
    return {
        "name": state.name,
        "pid": state.pid,
        "exit_code": state.exit_code,
        "restarts": state.restarts,
        "cpu_s": round(state.cpu_s, 3),
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
