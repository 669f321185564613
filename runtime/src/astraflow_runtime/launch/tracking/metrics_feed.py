"""The steps and evaluations of ``metrics.jsonl`` as trackers get them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from astraflow_runtime.launch.results.metrics import (
    FILE,
    EvaluationRecord,
    MetricsStep,
    read_line,
)
from astraflow_runtime.launch.tracking.lines import LineTail

EVAL = "eval"
"""The group of evaluations. A policy of this name gets the group ``"eval_policy"``."""


class TrackedStep(NamedTuple):
    """The arguments of :meth:`astraflow_core.protocols.tracker.Tracker.metrics`."""

    group: str
    step: int
    time_s: float
    values: Mapping[str, float]


class MetricsFeed:
    """Reads on from where it stopped. ``sent``: group → the last step that the tracker has; a step that is not above it is passed
    over, such as a step that a trainer repeats after it went back to a checkpoint."""

    def __init__(self, directory: Path, sent: Mapping[str, int]) -> None:
        self._tail = LineTail(directory / FILE)
        self._last = dict(sent)

    def new(self, most: int) -> list[TrackedStep]:
        """The next steps, ``most`` of them or fewer; empty if there are none yet."""
        found: list[TrackedStep] = []
        for line in self._tail.new():
            step = _tracked(line)
            if step is not None and step.step > self._last.get(step.group, -1):
                self._last[step.group] = step.step
                found.append(step)
                if len(found) == most:
                    break
        return found


def _tracked(line: bytes) -> TrackedStep | None:
    """The contents of a line; ``None`` if it is damaged or about something else."""
    try:
        _, read = read_line(line)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    if isinstance(read, MetricsStep):
        return _of_step(read)
    return None if read is None else _of_evaluation(read)


def _of_step(step: MetricsStep) -> TrackedStep:
    values = {f"{step.policy}/{name}": value for name, value in step.figures.items()}
    for source, rate in step.pass_rates.items():
        values[f"{step.policy}/pass_rate/{source}"] = rate
    group = f"{EVAL}_policy" if step.policy == EVAL else step.policy
    return TrackedStep(group, step.step, step.time, _finite(values))


def _of_evaluation(record: EvaluationRecord) -> TrackedStep:
    """Its step is the version; of several policies the sum, which grows with each."""
    entry = record.evaluation
    values: dict[str, float | None] = {f"{EVAL}/accuracy": entry.accuracy}
    for name, result in entry.sets.items():
        values[f"{EVAL}/{name}/avg"] = result.avg
        values[f"{EVAL}/{name}/pass"] = result.pass_
        values[f"{EVAL}/{name}/mean_reward"] = result.mean_reward
    for policy, version in entry.versions.items():
        values[f"{EVAL}/version/{policy}"] = float(version)
    return TrackedStep(EVAL, sum(entry.versions.values()), record.time, _finite(values))


def _finite(values: Mapping[str, float | None]) -> dict[str, float]:
    return {k: float(v) for k, v in values.items() if v is not None and math.isfinite(v)}
