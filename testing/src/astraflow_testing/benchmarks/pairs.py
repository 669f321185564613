"""Two sides measured alternately in one process, so that other load on the machine affects both."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

Work = Callable[[int], None]
"""``work(count)`` does that many units."""

SHORT_S, LONG_S = 0.03, 0.5
_MOST = 1 << 20
_LEAST_S = 1e-9


def measure(ours: Work, theirs: Work, pairs: int) -> dict[str, Any]:
    """``count``: units of a sample, as many as both sides do in at least 30 ms, unless one then takes longer than 0.5 s.
    ``cpu`` and ``wall``: microseconds of a unit of each side, the median of the pairs' ratios, and their quartiles."""
    count = 1
    while True:
        took = [_sample(side, count)[1] for side in (ours, theirs)]
        if min(took) >= SHORT_S or max(took) >= LONG_S or count >= _MOST:
            break
        count *= 2
    samples: tuple[list[tuple[float, float]], ...] = ([], [])
    for pair in range(pairs):
        for at in (0, 1) if pair % 2 == 0 else (1, 0):  # neither side is always the first
            samples[at].append(_sample((ours, theirs)[at], count))
    return {
        "count": count,
        "pairs": pairs,
        **{
            clock: compared([s[at] for s in samples[0]], [s[at] for s in samples[1]], count)
            for at, clock in enumerate(("cpu", "wall"))
        },
    }


def compared(ours: Sequence[float], theirs: Sequence[float], count: int) -> dict[str, float]:
    """Of samples in seconds, each of ``count`` units."""
    ratios = [a / max(b, _LEAST_S) for a, b in zip(ours, theirs, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return {
        "us": 1e6 * statistics.median(ours) / count,
        "against_us": 1e6 * statistics.median(theirs) / count,
        "ratio": statistics.median(ratios),
        "low": low,
        "high": high,
    }


def _sample(work: Work, count: int) -> tuple[float, float]:
    """CPU seconds of this process and of those that it started and waited for, and seconds on the wall."""
    cpu, wall = _cpu_s(), time.perf_counter()
    work(count)
    return _cpu_s() - cpu, time.perf_counter() - wall


def _cpu_s() -> float:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime
