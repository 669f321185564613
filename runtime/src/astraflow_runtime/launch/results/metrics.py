"""``metrics.jsonl`` of a run: one line per step of a policy, one per evaluation; others are passed over."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from astraflow_runtime.launch.view.status import parse_evaluation
from astraflow_wire.status import EvaluationResult

FILE = "metrics.jsonl"
_NAMED = 5


@dataclass(frozen=True, slots=True)
class MetricsStep:
    """One acknowledged update of ``policy``; ``step`` counts from 1, ``time`` in seconds since the epoch.
    ``figures``: ``reward``, ``loss``, ``staleness_mean`` … as far as finite numbers were logged; ``pass_rates``: of
    each source of prompts."""

    time: float
    policy: str
    step: int
    figures: dict[str, float]
    pass_rates: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EvaluationRecord:
    """One evaluation and when it ended."""

    time: float
    evaluation: EvaluationResult


@dataclass(frozen=True, slots=True)
class MetricsFile:
    """The file, read; ``lines`` as they are. ``steps`` has each step of a policy once: of one that was repeated after
    its trainer went back to a checkpoint, what was logged first. ``damaged``: numbers, from 1, of the lines that are left
    out because they are not what a dataflow writes."""

    lines: tuple[dict[str, Any], ...] = ()
    steps: tuple[MetricsStep, ...] = ()
    evaluations: tuple[EvaluationRecord, ...] = ()
    damaged: tuple[int, ...] = ()


def read_metrics(directory: Path, only: Collection[str] | None = None) -> MetricsFile:
    """What the file holds so far; empty if there is none yet. A last line that a killed process left
    unfinished is skipped, and what follows a hole that power loss left. With ``only`` the steps have these figures and
    ``lines`` is empty: an eighth of the memory."""
    file = directory / FILE
    if not file.exists():
        return MetricsFile()
    lines: list[dict[str, Any]] = []
    steps: dict[tuple[str, int], MetricsStep] = {}
    evaluations: list[EvaluationRecord] = []
    damaged = []
    for number, text in enumerate(_texts(file), 1):
        try:
            line, read = read_line(text)
        except (ValueError, KeyError, TypeError, AttributeError):
            if text.endswith(b"\n"):
                damaged.append(number)
            continue
        if only is None:
            lines.append(line)
        if isinstance(read, MetricsStep):
            if only is not None:
                kept = {name: read.figures[name] for name in only if name in read.figures}
                read = replace(read, figures=kept)
            steps.setdefault((read.policy, read.step), read)
        elif read is not None:
            evaluations.append(read)
    return MetricsFile(tuple(lines), tuple(steps.values()), tuple(evaluations), tuple(damaged))


def _texts(file: Path) -> Iterator[bytes]:
    """The lines up to a hole."""
    with file.open("rb") as opened:
        for text in opened:
            before, hole, _ = text.partition(b"\0")
            if before:
                yield before
            if hole:
                return


def left_out(metrics: MetricsFile, directory: Path) -> str:
    """Says which lines are left out of the figures; empty if none are."""
    if not metrics.damaged:
        return ""
    more = len(metrics.damaged) - _NAMED
    named = ", ".join(map(str, metrics.damaged[:_NAMED])) + (
        f" and {more} more" if more > 0 else ""
    )
    return f"{directory / FILE} is damaged: line {named} is ignored"


def read_line(text: bytes) -> tuple[dict[str, Any], MetricsStep | EvaluationRecord | None]:
    """A line, and its contents. :class:`ValueError`, :class:`KeyError`, :class:`TypeError` or :class:`AttributeError` if it
    is not one that a dataflow writes."""
    line = json.loads(text.decode())
    if not isinstance(line, dict):
        raise ValueError("not a JSON object")
    if "policy" in line and "step" in line:
        return line, _step(line)
    if "eval" in line:
        return line, EvaluationRecord(float(line["time"]), parse_evaluation(line["eval"]))
    return line, None


def _step(line: dict[str, Any]) -> MetricsStep:
    if not isinstance(line["policy"], str) or not isinstance(line["step"], int):
        raise ValueError("not a step of a policy")
    figures = {**(line.get("metrics") or {}), **line}
    numbers = {
        key: float(value)
        for key, value in figures.items()
        if isinstance(value, int | float) and key not in ("time", "step")
    }
    rates = {name: float(rate["mean"]) for name, rate in (line.get("pass_rates") or {}).items()}
    return MetricsStep(float(line["time"]), line["policy"], line["step"], numbers, rates)


def rewards_of(steps: Sequence[MetricsStep], policy: str) -> list[float]:
    """Mean reward of each step of a policy, in order."""
    return [
        step.figures["reward"]
        for step in steps
        if step.policy == policy and "reward" in step.figures
    ]
