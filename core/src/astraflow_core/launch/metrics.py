"""``metrics.jsonl`` of a run: one line per step of a policy, one per evaluation; others are passed over."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astraflow_core.errors import UserError
from astraflow_core.launch.status import Evaluation, parse_evaluation

FILE = "metrics.jsonl"


@dataclass(frozen=True, slots=True)
class Step:
    """One acknowledged update of ``policy``; ``step`` counts from 1, ``time`` in seconds since the epoch.
    ``figures``: ``reward``, ``loss``, ``staleness_mean`` … as far as finite numbers were logged."""

    time: float
    policy: str
    step: int
    figures: dict[str, float]


@dataclass(frozen=True, slots=True)
class EvaluationRecord:
    """One evaluation and when it ended."""

    time: float
    evaluation: Evaluation


@dataclass(frozen=True, slots=True)
class Metrics:
    """The file, read; ``lines`` as they are."""

    lines: tuple[dict[str, Any], ...] = ()
    steps: tuple[Step, ...] = ()
    evaluations: tuple[EvaluationRecord, ...] = ()


def read_metrics(directory: Path) -> Metrics:
    """What the file holds so far; empty if there is none yet. A last line that a killed process left
    unfinished is skipped; any other that is no JSON is a :class:`UserError`."""
    file = directory / FILE
    if not file.exists():
        return Metrics()
    texts = file.read_text(encoding="utf-8").splitlines()
    lines: list[dict[str, Any]] = []
    for number, text in enumerate(texts, 1):
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError as error:
            if number < len(texts):
                raise UserError(
                    f"{file}, line {number}: expected a JSON object: {error}"
                ) from error
    steps = tuple(_step(line) for line in lines if "policy" in line and "step" in line)
    evaluations = tuple(
        EvaluationRecord(line["time"], parse_evaluation(line["eval"]))
        for line in lines
        if "eval" in line
    )
    return Metrics(tuple(lines), steps, evaluations)


def _step(line: dict[str, Any]) -> Step:
    figures = {**line, **(line.get("metrics") or {})}
    numbers = {
        key: float(value)
        for key, value in figures.items()
        if isinstance(value, int | float) and key not in ("time", "step")
    }
    return Step(line["time"], line["policy"], line["step"], numbers)


def rewards_of(steps: Sequence[Step], policy: str) -> list[float]:
    """Mean reward of each step of a policy, in order."""
    return [
        step.figures["reward"]
        for step in steps
        if step.policy == policy and "reward" in step.figures
    ]
