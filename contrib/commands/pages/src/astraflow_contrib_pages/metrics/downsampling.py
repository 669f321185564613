"""Fewer points of a curve that draw the same: the lowest and the highest of each bucket."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def min_max(x: Floats, y: Floats, buckets: int) -> tuple[Floats, Floats]:
    """The points with the smallest and the largest ``y`` of each of ``buckets`` runs of neighbours, and both ends, in the
    order of ``x``: at most ``2 * buckets + 2`` of them. A line through them covers the same pixels as one through all, where a
    bucket is a pixel wide (the M4 aggregation of Jugel et al. 2014, without the first and last of a bucket)."""
    count = len(x)
    if count <= 2 * buckets + 2:
        return x, y
    size = -(-count // buckets)
    padding = size * (-(-count // size)) - count
    starts = np.arange(0, count, size)
    low = np.pad(y, (0, padding), constant_values=np.inf).reshape(-1, size).argmin(1)
    high = np.pad(y, (0, padding), constant_values=-np.inf).reshape(-1, size).argmax(1)
    kept = np.unique(np.concatenate([starts + low, starts + high, [0, count - 1]]))
    return x[kept], y[kept]
