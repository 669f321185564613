"""Figures of steps as columns of numbers, taken from lines of ``metrics.jsonl`` many at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from astraflow_contrib_pages.metrics.downsampling import Floats, min_max
from astraflow_contrib_pages.metrics.staleness_map import StalenessCounts
from astraflow_core.errors import WireError
from astraflow_wire.status import EvaluationResult

Curve = list[list[float]]
_NOT_FIGURES = ("time", "step")
_NUMBERS = (int, float)
_PLAIN = {int, float, bool}
_WINDOW = 20
"""Steps over which tokens per second are taken: neighbours end within milliseconds of each other."""
_decoder = msgspec.json.Decoder()


class _Column:
    """One figure of one policy: step and value of each step that has it. ``newest``: what was added last."""

    __slots__ = ("_parts", "newest")

    def __init__(self) -> None:
        self._parts: list[tuple[Floats, Floats]] = []
        self.newest = 0.0

    def extend(self, steps: Floats, values: Floats) -> None:
        self._parts.append((steps, values))
        self.newest = float(values[-1])

    def arrays(self) -> tuple[Floats, Floats]:
        """By ascending step; read-only."""
        if len(self._parts) > 1:
            self._parts = [_joined(self._parts)]
        return self._parts[0]


def _joined(parts: list[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    steps, values = (np.concatenate(each) for each in zip(*parts, strict=True))
    if (np.diff(steps) < 0).any():
        order = np.argsort(steps, kind="stable")
        steps, values = steps[order], values[order]
    return steps, values


class _PolicyColumns:
    """The columns of a policy. Lines wait until :meth:`flush`, those with the same keys together: so NumPy converts them, and not a loop
    over each value."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.columns: dict[str, _Column] = {}
        self.staleness = StalenessCounts()
        self._waiting: dict[tuple[str, ...], list[tuple[int, int, tuple[Any, ...]]]] = {}
        self._progress: list[tuple[int, float, float]] = []
        self._recent: list[tuple[int, float, float]] = []

    def add(self, line: Mapping[str, Any]) -> None:
        """A step, unless it was reported before."""
        step = line["step"]
        if not isinstance(step, int):
            raise ValueError("not a step of a policy")
        time = float(line["time"])
        if step in self.seen:
            return
        figures = {**(line.get("metrics") or {}), **line}
        if rates := line.get("pass_rates"):
            figures |= {f"pass_rate: {name}": rate["mean"] for name, rate in rates.items()}
        tokens = line.get("tokens_generated")
        self.seen.add(step)
        self.staleness.add(step, line.get("staleness"))
        row = len(self.seen), step, tuple(figures.values())
        self._waiting.setdefault(tuple(figures), []).append(row)
        if isinstance(tokens, _NUMBERS):
            self._progress.append((step, time, tokens))

    def flush(self) -> None:
        """Put the lines that wait into the columns."""
        found: dict[str, list[tuple[Floats, Floats, Floats]]] = {}
        for names, rows in self._waiting.items():
            orders, steps, values = zip(*rows, strict=True)
            places = np.array(orders, float), np.array(steps, float)
            for name, column in zip(names, zip(*values, strict=True), strict=True):
                if name not in _NOT_FIGURES:
                    numbers = _numbers(column)
                    kept = np.isfinite(numbers)
                    if kept.any():
                        part = places[0][kept], places[1][kept], numbers[kept]
                        found.setdefault(name, []).append(part)
        self._waiting.clear()
        for name, parts in found.items():
            order, steps_of, values_of = (np.concatenate(each) for each in zip(*parts, strict=True))
            by_line = np.argsort(order) if len(parts) > 1 else slice(None)
            self._column(name).extend(steps_of[by_line], values_of[by_line])
        self._add_speed()

    def _add_speed(self) -> None:
        """Tokens over time since :data:`_WINDOW` steps before; the counters of a run that was resumed begin anew."""
        lines = self._recent + self._progress
        if not self._progress:
            return
        old = len(self._recent)
        self._recent, self._progress = lines[1 - _WINDOW :], []
        steps, times, tokens = np.array(lines, float).T
        places = np.arange(len(lines))
        anew = np.where(np.diff(tokens, prepend=tokens[:1]) < 0, places, 0)
        began = np.maximum(np.maximum.accumulate(anew), places - (_WINDOW - 1))
        elapsed = times - times[began]
        kept = (elapsed > 0) & (places >= old)
        if kept.any():
            speed = (tokens - tokens[began])[kept] / elapsed[kept]
            self._column("tokens_per_s").extend(steps[kept], speed)

    def _column(self, name: str) -> _Column:
        return self.columns.setdefault(name, _Column())


def _numbers(values: tuple[Any, ...]) -> Floats:
    """As floats; NaN for values that are not numbers."""
    types = set(map(type, values))
    if types <= _PLAIN:
        try:
            return np.array(values, float)
        except OverflowError:
            pass  # a whole number beyond floats
    elif not types & _PLAIN:
        return np.full(len(values), np.nan)
    return np.array([_number(value) for value in values])


def _number(value: Any) -> float:
    try:
        return float(value) if isinstance(value, _NUMBERS) else np.nan
    except OverflowError:
        return np.nan


class StepColumns:
    """What lines of ``metrics.jsonl`` say. Of a step that was repeated what was logged first counts, and lines that are not what
    a dataflow writes are left out, as :func:`astraflow_runtime.launch.results.metrics.read_metrics` does."""

    def __init__(self) -> None:
        self._policies: dict[str, _PolicyColumns] = {}
        self._services: dict[str, _Column] = {}
        self.steps = 0
        self.evaluations: list[dict[str, Any]] = []
        self.damaged = 0

    def take(self, block: bytes) -> None:
        """Whole lines, each with its end."""
        for line in self._decoded(block):
            try:
                self._take(line)
            except (ValueError, KeyError, TypeError, AttributeError, WireError):
                self.damaged += 1
        for policy in self._policies.values():
            policy.flush()

    def _decoded(self, block: bytes) -> Iterable[Any]:
        try:
            lines: list[Any] = _decoder.decode_lines(block)
        except (msgspec.DecodeError, RecursionError):
            return self._one_by_one(block)
        return lines if len(lines) == block.count(b"\n") else self._one_by_one(block)

    def _one_by_one(self, block: bytes) -> Iterator[Any]:
        for text in block.splitlines():
            try:
                try:
                    yield _decoder.decode(text)
                except msgspec.DecodeError:
                    yield json.loads(text)  # which knows NaN
            except (ValueError, RecursionError):
                self.damaged += 1

    def _take(self, line: Any) -> None:
        if not isinstance(line, dict):
            raise ValueError("no JSON object")
        if "policy" in line and "step" in line:
            self._policies.setdefault(str(line["policy"]), _PolicyColumns()).add(line)
            self.steps = max(self.steps, line["step"])
        elif "eval" in line:
            result = msgspec.convert(line["eval"], EvaluationResult)
            self.evaluations.append(_evaluation(float(line["time"]), result))
        elif "balance" in line:
            self._take_balance(line["balance"])

    def _take_balance(self, report: Mapping[str, Any]) -> None:
        waits = {
            f"trainer {name}": policy["waiting_fraction"]
            for name, policy in report["policies"].items()
        }
        for raas in report["raas"]:
            busy, idle = raas.get("busy_s", 0.0), raas.get("idle_s", 0.0)
            if busy + idle > 0:
                waits[f"{raas['name']}, empty places"] = idle / (busy + idle)
        for name, share in waits.items():
            column = self._services.setdefault(name, _Column())
            column.extend(np.array([float(self.steps)]), np.array([float(share)]))

    def names(self) -> list[str]:
        """All figures that any step has."""
        return sorted({name for policy in self._policies.values() for name in policy.columns})

    def last(self) -> dict[str, dict[str, float]]:
        """The newest value of each figure of each policy."""
        return {
            policy: {name: column.newest for name, column in entry.columns.items()}
            for policy, entry in self._policies.items()
        }

    def arrays(self, names: set[str]) -> dict[str, dict[str, tuple[Floats, Floats]]]:
        """Policy → figure of ``names`` → steps and values."""
        return {
            policy: {n: c.arrays() for n, c in entry.columns.items() if n in names}
            for policy, entry in self._policies.items()
        }

    def of_versions(
        self, names: Iterable[str], most: int
    ) -> dict[str, dict[int, dict[str, float]]]:
        """Policy → version → the figures of ``names`` of the step that has published it, of the newest ``most`` steps."""
        found: dict[str, dict[int, dict[str, float]]] = {}
        for policy, entry in self._policies.items():
            if (version := entry.columns.get("version")) is None:
                continue
            steps, versions = version.arrays()
            of_step = dict(
                zip(steps[-most:].tolist(), versions[-most:].astype(int).tolist(), strict=True)
            )
            own = found.setdefault(policy, {})
            for name in names:
                if column := entry.columns.get(name):
                    steps, values = column.arrays()
                    for step, value in zip(
                        steps[-most:].tolist(), values[-most:].tolist(), strict=True
                    ):
                        if step in of_step:
                            own.setdefault(of_step[step], {})[name] = value
        return found

    def staleness(self, columns: int, first: float, last: float) -> dict[str, dict[str, Any]]:
        """Policy → the map of :meth:`StalenessCounts.cells`, of those that have one."""
        maps = {
            name: policy.staleness.cells(columns, first, last)
            for name, policy in self._policies.items()
        }
        return {name: cells for name, cells in maps.items() if cells is not None}

    def service_arrays(self) -> dict[str, tuple[Floats, Floats]]:
        """Service → steps, and the share of its time that it waited."""
        return {name: column.arrays() for name, column in self._services.items()}


def thinned(
    columns: Mapping[str, tuple[Floats, Floats]], buckets: int, first: float, last: float
) -> dict[str, Curve]:
    """Name → ``[steps, values]`` of the steps ``first`` to ``last``, downsampled to ``buckets``."""
    found: dict[str, Curve] = {}
    for name, (steps, values) in columns.items():
        begin, end = np.searchsorted(steps, [first, last], side="left")
        # One more on each side, so that the line continues to the edge.
        view = slice(max(0, int(begin) - 1), min(len(steps), int(end) + 2))
        x, y = min_max(steps[view], values[view], buckets)
        whole: npt.NDArray[np.int64] = x.astype(np.int64)
        found[name] = [whole.tolist(), y.tolist()]
    return found


def _evaluation(time: float, result: EvaluationResult) -> dict[str, Any]:
    return {
        "time": time,
        "versions": result.versions,
        "accuracy": {policy: result.accuracy_of(policy) for policy in result.versions},
        "sets": {
            name: {"avg": entry.avg, "pass": entry.pass_, "n": entry.n, "k": entry.k}
            for name, entry in result.sets.items()
        },
    }
