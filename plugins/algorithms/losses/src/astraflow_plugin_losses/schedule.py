"""Coefficients that change over the updates of a run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def piecewise_linear(knots: float | Sequence[tuple[float, float]], step: int) -> float:
    """Value at update ``step`` of a number, or of ``(update, value)`` knots in increasing order, joined by
    straight lines, constant before the first and after the last."""
    if isinstance(knots, (int, float)):
        return float(knots)
    return float(np.interp(step, [at for at, _ in knots], [value for _, value in knots]))
