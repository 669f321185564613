"""Two sides measured in turn, and clocks of other processes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence


def cpu_of(pid: int) -> float:
    """CPU seconds, user and system, of all threads of a process, from its own clock (Linux)."""
    # The clock id of a process, as clock_getcpuclockid(3) makes it.
    return time.clock_gettime((~pid << 3) | 2)


def seconds(act: Callable[[], object]) -> float:
    """Wall seconds of one call."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def interleaved(pairs: int, *sides: Callable[[], float]) -> list[list[float]]:
    """Each side's measurements from ``A B A B ...``, after one unmeasured round."""
    for side in sides:
        side()
    measured: list[list[float]] = [[] for _ in sides]
    for _ in range(pairs):
        for side, values in zip(sides, measured, strict=True):
            values.append(side())
    return measured


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Median of the pairs' ratios ``ours / theirs``."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def spread(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Interquartile range of the pairs' ratios over their median."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return (high - low) / middle


def percentile(values: Sequence[float], part: float) -> float:
    """The value that ``part`` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]
