"""How much longer a rollout takes in company: a line through what was recorded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from astraflow_contrib_simulate.recording import RecordedGroup

FEWEST = 8
SIGNIFICANT = 3.0
"""Standard errors that a slope must be from 0 to be believed."""

_SHORTEST = 0.1


def slowdown(groups: Sequence[RecordedGroup]) -> float:
    """Seconds that each further busy place of a RaaS adds to a rollout: the least-squares slope of the recorded
    times, 0 if it is not clearly above that."""
    if len(groups) < FEWEST:
        return 0.0
    busy, seconds = [g.busy for g in groups], [g.seconds for g in groups]
    mean_x, mean_y = fmean(busy), fmean(seconds)
    spread = sum((x - mean_x) ** 2 for x in busy)
    if spread == 0:
        return 0.0
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(busy, seconds, strict=True)) / spread
    rest = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in zip(busy, seconds, strict=True))
    error = math.sqrt(rest / (len(groups) - 2) / spread)
    return slope if slope > SIGNIFICANT * error else 0.0


def rollout_s(group: RecordedGroup, busy: float, slope: float) -> float:
    """What a recorded rollout would have taken with ``busy`` places busy."""
    return max(_SHORTEST * group.seconds, group.seconds + slope * (busy - group.busy))
