"""``metrics.jsonl`` as columns of numbers, read on from where the last look ended."""

from __future__ import annotations

import json
import math
import stat
import threading
from array import array
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from astraflow_contrib_pages.downsampling import Floats, min_max
from astraflow_core.errors import WireError
from astraflow_runtime.launch.results.metrics import FILE
from astraflow_wire.status import EvaluationResult

_PIECE = 4 << 20
"""Bytes that are read at a time."""
_TAIL = 64
"""Bytes before the place of the last look, by which a file that was cut and written on is recognised."""
_NOT_FIGURES = ("time", "step")
_NUMBERS = (int, float)
_WINDOW = 20
"""Steps over which tokens per second are taken: neighbours end within milliseconds of each other."""


class _Column:
    """One figure of one policy: step and value of each step that has it."""

    __slots__ = ("_steps", "_values")

    def __init__(self) -> None:
        self._steps, self._values = array("d"), array("d")

    def add(self, step: float, value: float) -> None:
        self._steps.append(step)
        self._values.append(value)

    def arrays(self) -> tuple[Floats, Floats]:
        """Copies, since an array that is looked at cannot grow."""
        return np.array(self._steps), np.array(self._values)


class _PolicyColumns:
    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.columns: dict[str, _Column] = {}
        self._recent: list[tuple[float, float]] = []

    def add(self, line: Mapping[str, Any]) -> None:
        """A step, unless it was told of before."""
        step = line["step"]
        if not isinstance(step, int):
            raise ValueError("not a step of a policy")
        time = float(line["time"])
        if step in self.seen:
            return
        figures = {**(line.get("metrics") or {}), **line}
        for name, rate in (line.get("pass_rates") or {}).items():
            figures[f"pass_rate: {name}"] = rate["mean"]
        self.seen.add(step)
        columns = self.columns
        for name, value in figures.items():
            if isinstance(value, _NUMBERS) and name not in _NOT_FIGURES and math.isfinite(value):
                column = columns.get(name)
                if column is None:
                    column = columns[name] = _Column()
                column.add(step, value)
        self._add_speed(step, time, line.get("tokens_generated"))

    def _add_speed(self, step: int, time: float, tokens: float | None) -> None:
        if tokens is None:
            return
        recent = self._recent
        if recent and tokens < recent[-1][1]:
            recent.clear()  # the counters of a run that was resumed begin anew
        recent.append((time, tokens))
        del recent[:-_WINDOW]
        (began, before), elapsed = recent[0], time - recent[0][0]
        if elapsed > 0 and began < time:
            column = self.columns.setdefault("tokens_per_s", _Column())
            column.add(step, (tokens - before) / elapsed)


class MetricColumns:
    """The file of one run. Any thread may call it. As :func:`astraflow_runtime.launch.results.metrics.read_metrics`: of a
    step that was repeated what was logged first counts, and lines that are not what a dataflow writes are left out."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._offset, self._tail = 0, b""
        self._policies: dict[str, _PolicyColumns] = {}
        self._services: dict[str, _Column] = {}
        self._steps = 0
        self.evaluations: list[dict[str, Any]] = []
        self.damaged = 0

    def update(self) -> int:
        """Read what was added; how many bytes of the file are read, which grows with each line."""
        with self._lock:
            try:
                found = self.path.stat()
            except FileNotFoundError:
                self._forget()
                return 0
            if not stat.S_ISREG(found.st_mode):  # to open a pipe could wait for ever
                return 0
            size = found.st_size
            if size != self._offset or self._offset == 0:
                self._read_on()
            return self._offset

    def _read_on(self) -> None:
        with self.path.open("rb") as file:
            file.seek(max(0, self._offset - _TAIL))
            if file.read(len(self._tail)) != self._tail:
                self._forget()
            file.seek(self._offset)
            rest = b""
            while piece := file.read(_PIECE):
                whole, hole, _ = (rest + piece).partition(b"\0")
                end = whole.rfind(b"\n") + 1
                for text in whole[:end].splitlines():
                    self._take(text)
                self._offset += end
                self._tail = (self._tail + whole[:end])[-_TAIL:]
                rest = whole[end:]
                if hole:
                    return

    def _take(self, text: bytes) -> None:
        try:
            try:
                line = msgspec.json.decode(text)
            except msgspec.DecodeError:
                line = json.loads(text)  # which knows NaN
            if not isinstance(line, dict):
                raise ValueError("no JSON object")
            if "policy" in line and "step" in line:
                self._policies.setdefault(str(line["policy"]), _PolicyColumns()).add(line)
                self._steps = max(self._steps, line["step"])
            elif "eval" in line:
                result = msgspec.convert(line["eval"], EvaluationResult)
                self.evaluations.append(_evaluation(float(line["time"]), result))
            elif "balance" in line:
                self._take_balance(line["balance"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, WireError):
            self.damaged += 1

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
            self._services.setdefault(name, _Column()).add(self._steps, float(share))

    @property
    def steps(self) -> int:
        """The largest step so far, of any policy."""
        return self._steps

    def names(self) -> list[str]:
        """All figures that any step has."""
        with self._lock:
            found = {name for policy in self._policies.values() for name in policy.columns}
        return sorted(found)

    def last(self) -> dict[str, dict[str, float]]:
        """The newest value of each figure of each policy."""
        with self._lock:
            return {
                policy: {
                    name: float(column.arrays()[1][-1]) for name, column in entry.columns.items()
                }
                for policy, entry in self._policies.items()
            }

    def curves(
        self, names: Iterable[str], buckets: int, first: float, last: float
    ) -> dict[str, dict[str, list[list[float]]]]:
        """Policy → figure → ``[steps, values]`` of the steps ``first`` to ``last``, downsampled to ``buckets``."""
        wanted = set(names)
        with self._lock:
            found = {
                policy: {n: c.arrays() for n, c in entry.columns.items() if n in wanted}
                for policy, entry in self._policies.items()
            }
        return {
            policy: dict(_thinned(columns.items(), buckets, first, last))
            for policy, columns in found.items()
        }

    def waiting(self, buckets: int, first: float, last: float) -> dict[str, list[list[float]]]:
        """Service → the share of its time that it waited, by step."""
        with self._lock:
            found = {name: column.arrays() for name, column in self._services.items()}
        return dict(_thinned(found.items(), buckets, first, last))


def _thinned(
    columns: Iterable[tuple[str, tuple[Floats, Floats]]], buckets: int, first: float, last: float
) -> Iterator[tuple[str, list[list[float]]]]:
    for name, (steps, values) in columns:
        order = np.argsort(steps, kind="stable") if (np.diff(steps) < 0).any() else slice(None)
        steps, values = steps[order], values[order]
        begin, end = np.searchsorted(steps, [first, last], side="left")
        # One more on each side, so that the line goes on to the edge.
        view = slice(max(0, int(begin) - 1), min(len(steps), int(end) + 2))
        x, y = min_max(steps[view], values[view], buckets)
        yield name, [x.tolist(), y.tolist()]


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
