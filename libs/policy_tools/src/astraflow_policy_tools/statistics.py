"""Statistics of rows and groups that several data policies decide by."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from astraflow_core.types import BufferedRow

EPSILON = 1e-5
"""Beside the standard deviation, as in AstraFlow 0.1.2's normalisation of rewards."""


def surprise(row: BufferedRow, epsilon: float = EPSILON) -> float:
    """``|reward - group mean| / (group std + epsilon)``, from the statistics stamped at acceptance (std with
    n - 1): how far from what its prompt usually earns. 0 for a group of one."""
    if row.group_size < 2:
        return 0.0
    return abs(row.reward - row.group_mean) / (row.group_std + epsilon)


def mean(values: npt.NDArray[Any]) -> float:
    """The mean of the few numbers of a group, exactly rounded; ``values`` ``[n]``, of which there is one at least.
    A tenth of the time of ``ndarray.mean``."""
    return math.fsum(values.tolist()) / len(values)


def without_variance(
    rewards: npt.NDArray[np.float64], tolerance: float = 0.0, absolute_tolerance: float = 0.0
) -> bool:
    """Whether there are two rewards at least and all count as equal: none is further from the first than
    ``absolute_tolerance + tolerance * |first|`` (``torch.allclose`` to the first). ``rewards`` float64 ``[n]``, judged
    in float32, as they are trained: 0.1 + 0.2 is 0.3."""
    single = rewards.astype(np.float32)
    if tolerance or absolute_tolerance:
        allowed = np.float32(absolute_tolerance) + np.float32(tolerance) * abs(single[0])
        return len(single) > 1 and bool((abs(single - single[0]) <= allowed).all())
    values = single.tolist()  # for the few of a group five times as quick as comparing arrays
    return len(values) > 1 and values.count(values[0]) == len(values)
