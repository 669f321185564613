"""The gap between log-probs of engine and trainer: mean, largest, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

LARGEST_PER_MEAN = 20.0
"""The allowed largest gap, as a multiple of the allowed mean gap."""

SHARE_OF_SPREAD = 0.1
FLOOR = 1e-5
"""Nats below which a difference is rounding in float32."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Absolute differences of log-probs in nats over ``tokens`` tokens: ``mean``, ``largest`` and where that
    is (``row``, ``position`` in it) with both values. ``spread`` is the standard deviation of the log-probs
    themselves: the gap that a wrong assignment of values to tokens would cause."""

    mean: float
    largest: float
    row: int
    position: int
    engine: float
    trainer: float
    spread: float
    tokens: int

    def allowed(self, most: float) -> float:
        """The allowed mean gap: ``most``, but less if the log-probs themselves hardly vary."""
        return max(FLOOR, min(most, SHARE_OF_SPREAD * self.spread))

    def fits(self, most: float) -> bool:
        """Whether mean and largest gap are within their limits."""
        allowed = self.allowed(most)
        return self.mean <= allowed and self.largest <= LARGEST_PER_MEAN * allowed

    @property
    def figures(self) -> dict[str, float]:
        """The figures, for programs."""
        return {"mean": self.mean, "largest": self.largest, "tokens": float(self.tokens)}

    def __str__(self) -> str:
        return (
            f"mean {self.mean:.2g}, largest {self.largest:.2g} at token {self.position} of row {self.row} "
            f"(engine {self.engine:.4g}, trainer {self.trainer:.4g}), over {self.tokens} tokens"
        )


def gap(engine: Sequence[Floats], trainer: Sequence[Floats]) -> Gap:
    """The gap of values per row, float32 ``[T]`` each; a value that is not finite is infinitely far."""
    joined = np.concatenate([np.asarray(part, np.float64) for part in engine])
    other = np.concatenate([np.asarray(part, np.float64) for part in trainer])
    if not len(joined):
        return Gap(0.0, 0.0, 0, 0, 0.0, 0.0, 0.0, 0)
    with np.errstate(invalid="ignore"):
        apart = np.abs(joined - other)
    apart[~np.isfinite(apart)] = np.inf
    worst = int(apart.argmax())
    row, position = _row_and_position([len(part) for part in engine], worst)
    finite = other[np.isfinite(other)]
    return Gap(
        float(apart.mean()),
        float(apart[worst]),
        row,
        position,
        float(joined[worst]),
        float(other[worst]),
        float(finite.std()) if len(finite) else 0.0,
        len(joined),
    )


def shifted(engine: Sequence[Floats], trainer: Sequence[Floats], by: int) -> Gap:
    """The gap if the engine's values are shifted by ``by`` tokens."""
    moved, kept = [], []
    for ours, theirs in zip(engine, trainer, strict=True):
        inner = slice(max(0, -by), min(len(ours), len(ours) - by))
        moved.append(ours[inner])
        kept.append(theirs[max(0, by) : len(theirs) + min(0, by)])
    return gap(moved, kept)


def _row_and_position(lengths: Sequence[int], index: int) -> tuple[int, int]:
    ends: npt.NDArray[np.int64] = np.cumsum(lengths)
    row = int(np.searchsorted(ends, index, side="right"))
    return row, index - int(ends[row] - lengths[row])
