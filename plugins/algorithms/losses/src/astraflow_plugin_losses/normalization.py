"""Advantages per row from group statistics, and whitening over the batch: float64 NumPy."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from astraflow_core.types import Batch

Floats = npt.NDArray[np.float64]
WHITEN_EPS = 1e-8
"""Added to the variance by ``masked_whiten`` of verl 0.9.1."""


def group_relative(
    batch: Batch,
    *,
    normalize_std: bool,
    std_eps: float,
    std_eps_inside: bool = False,
    bessel: bool = True,
    leave_one_out: bool = False,
    alone: Literal["zero", "reward"] = "zero",
    shaping: Floats | None = None,
) -> Floats:
    """``(R - mean) / (std + eps)`` per row, float64 ``[R]``, from the statistics stamped on the rows.

    With ``leave_one_out`` the mean is that of the other rows, ``n / (n - 1)`` times as far away, and the
    standard deviation is taken around these means. ``shaping`` (float64 ``[R]``) is added to the rewards
    and not to the statistics, as in AstraFlow 0.1.2; where a group has no spread it is not divided.
    """
    size = batch.group_size.astype(np.float64)
    others = np.maximum(size - 1, 1)
    factor = size / others if leave_one_out else np.ones_like(size)
    advantages = factor * (batch.rewards.astype(np.float64) - batch.group_mean)
    single = batch.group_size == 1
    advantages[single] = batch.rewards[single] if alone == "reward" else 0.0
    if shaping is not None:
        advantages += shaping
    if not normalize_std:
        return advantages
    std = batch.group_std * factor
    if not bessel:
        std = std * np.sqrt(others / size)
    if alone == "reward":
        std[single] = 1.0
    if shaping is not None:
        std = np.where(std > 0, std, 1.0)
    return advantages / (np.sqrt(std**2 + std_eps) if std_eps_inside else std + std_eps)


def whiten(values: Floats, mask: npt.NDArray[np.bool_], counts: Floats | None = None) -> Floats:
    """``(v - mean) / sqrt(var + 1e-8)`` over the entries in ``mask``, 0 elsewhere: ``masked_whiten`` of verl
    0.9.1, variance with n - 1 (0 for a single entry). Shapes ``[K]``; ``counts``: how often each counts."""
    weight = mask.astype(np.float64) if counts is None else np.where(mask, counts, 0.0)
    total = weight.sum()
    kept = np.where(mask, values, 0.0)
    mean = (weight * kept).sum() / max(total, 1.0)
    distance = np.where(mask, kept - mean, 0.0)
    variance = (weight * distance**2).sum() / max(total - 1.0, 1.0)
    return np.asarray(distance / np.sqrt(variance + WHITEN_EPS))


def tokens_per_row(batch: Batch) -> Floats:
    """Trained tokens of each row, float64 ``[R]``."""
    counts = np.bincount(batch.row_of_token, weights=batch.loss_mask, minlength=len(batch))
    return counts.astype(np.float64)
