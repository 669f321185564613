"""A replay compared with its run: where they first differ, and the curves of both."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from astraflow_contrib_replay_run.batches import OriginalStep
from astraflow_contrib_replay_run.service import ReplayedPolicy, ReplayedStep

_MEASURED = ("_s", "_gb", "_per_s")
"""How names of metrics end that measure the machine."""
_SHOWN_STEPS = 12
_CURVES = (
    ("reward", ("reward",)),
    ("loss", ("loss",)),
    ("KL", ("kl", "approx_kl")),
    ("grad norm", ("grad_norm",)),
)


@dataclass(frozen=True)
class PolicyComparison:
    """``metrics_from`` and ``weights_from``: the first update whose metrics or published weights differ from the run's, and
    which metric; 0 stands for the initial weights; ``None``: none differs. ``compared``: updates, and versions of the weights, of
    which both are known."""

    policy: str
    steps: int
    compared: tuple[int, int]
    metrics_from: tuple[int, str] | None
    weights_from: int | None


def compare(
    policy: str,
    replayed: ReplayedPolicy,
    record: Mapping[tuple[str, int], OriginalStep],
    start_digest: str,
) -> PolicyComparison:
    """Compare all updates of a policy."""
    metrics_from: tuple[int, str] | None = None
    weights_from: int | None = None
    versions = metrics = 0
    if start_digest and replayed.start_weights:
        versions = 1
        if start_digest != replayed.start_weights:
            weights_from = 0
    for step in replayed.steps:
        before = record.get((policy, step.step))
        if before is None:
            continue
        metrics += 1
        if metrics_from is None and (name := _differing(step, before)):
            metrics_from = (step.step, name)
        if before.digest and step.weights:
            versions += 1
            if weights_from is None and before.digest != step.weights:
                weights_from = step.step
    return PolicyComparison(
        policy, len(replayed.steps), (metrics, versions), metrics_from, weights_from
    )


def _differing(step: ReplayedStep, before: OriginalStep) -> str:
    """The first metric of the update that is not the same to the bit; those of the machine aside."""
    for name in sorted(step.metrics.keys() & before.metrics.keys()):
        if name.endswith(_MEASURED):
            continue
        new, old = step.metrics[name], before.metrics[name]
        if new != old and not (math.isnan(new) and math.isnan(old)):
            return name
    return ""


def verdict(found: PolicyComparison) -> str:
    """One sentence for people."""
    updates, versions = found.compared
    if not updates:
        return f"{found.policy}: no update to compare"
    if found.weights_from is not None:
        at = (
            "the initial weights differ"
            if found.weights_from == 0
            else (f"the weights differ from update {found.weights_from} on")
        )
    else:
        at = f"the weights of all {versions} published versions are the run's, bit for bit"
    if found.metrics_from is None:
        return f"{found.policy}: {updates} updates with the metrics of the run; {at}"
    step, name = found.metrics_from
    return f"{found.policy}: the first update that differs is {step} ({name}); {at}"


def curve_rows(
    policy: str,
    steps: Sequence[ReplayedStep],
    record: Mapping[tuple[str, int], OriginalStep],
    rewards: Mapping[tuple[str, int], float],
    run_rewards: Mapping[tuple[str, int], float],
) -> tuple[list[str], list[list[str]]]:
    """A table of up to :data:`_SHOWN_STEPS` updates: each curve in the run and in the replay."""
    header = ["update"]
    for name, _ in _CURVES:
        header += [f"{name}, run", "replay"]
    rows = []
    for step in _spread(steps):
        before = record.get((policy, step.step), OriginalStep({}))
        row = [str(step.step)]
        for label, names in _CURVES:
            if label == "reward":
                key = (policy, step.step)
                row += [_number(run_rewards.get(key)), _number(rewards.get(key))]
            else:
                row += [_first(before.metrics, names), _first(step.metrics, names)]
        rows.append(row)
    kept = [c for c in range(len(header)) if any(row[c] != "-" for row in rows)]
    return [header[c] for c in kept], [[row[c] for c in kept] for row in rows]


def _spread(steps: Sequence[ReplayedStep]) -> Iterator[ReplayedStep]:
    """The first, the last, and some between them."""
    count = min(_SHOWN_STEPS, len(steps))
    if count < 2:
        yield from steps
        return
    for index in range(count):
        yield steps[round(index * (len(steps) - 1) / (count - 1))]


def _first(metrics: Mapping[str, float], names: Sequence[str]) -> str:
    return next((_number(metrics[name]) for name in names if name in metrics), "-")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def described(
    found: PolicyComparison,
    replayed: ReplayedPolicy,
    record: Mapping[tuple[str, int], OriginalStep],
) -> dict[str, Any]:
    """The comparison as JSON, update by update."""
    steps = []
    for step in replayed.steps:
        before = record.get((found.policy, step.step), OriginalStep({}))
        steps.append(
            {
                "step": step.step,
                "batch": step.batch,
                "batch_digest": step.digest,
                "weights": step.weights or None,
                "run_weights": before.digest or None,
                "metrics": step.metrics,
                "run_metrics": before.metrics,
            }
        )
    differing = found.metrics_from
    return {
        "updates": found.steps,
        "compared_updates": found.compared[0],
        "compared_versions": found.compared[1],
        "first_difference": differing and {"step": differing[0], "metric": differing[1]},
        "weights_differ_from": found.weights_from,
        "ended": replayed.ended,
        "steps": steps,
    }
