"""Advantages per row from group statistics, and whitening over the batch: float64 NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from astraflow_core.errors import UserError
from astraflow_core.types import Batch
from astraflow_plugin_losses.config import GroupUnit

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Epsilon:
    """What keeps a division by a standard deviation finite: ``value``, added to the variance if it is ``inside`` the
    root, else to the standard deviation. The default is that of ``masked_whiten`` of verl 0.9.1."""

    value: float = 1e-8
    inside: bool = True

    def scale(self, variance: float) -> float:
        """What is divided by."""
        if self.inside:
            return float(np.sqrt(variance + self.value))
        return float(np.sqrt(variance)) + self.value


VERL = Epsilon()


@dataclass(frozen=True, slots=True)
class UnitStatistics:
    """Per row, float64 ``[R]``: the reward that counts, how many units its group has, their mean reward and
    standard deviation (n - 1), and how many of the units are the row's own."""

    reward: Floats
    size: Floats
    mean: Floats
    std: Floats
    own: Floats


def group_statistics(batch: Batch, unit: GroupUnit) -> UnitStatistics:
    """What was stamped on the rows, for the unit that counts once in the mean. Raises :class:`UserError` if
    the batch has no statistics over that unit."""
    if unit == "sequence":
        given = (batch.rewards, batch.group_size, batch.group_mean, batch.group_std)
        own = np.ones(len(batch))
    elif batch.units is None:
        raise UserError(
            f"group_unit = {unit!r} reads statistics over units, and batch {batch.id!r} ({len(batch)} rows) "
            "has none; batches of a dataflow have them, for one built by hand use "
            "astraflow_testing.stamping"
        )
    elif unit == "trajectory":
        of = batch.units
        given = (of.trajectory_reward, of.trajectories, of.trajectory_mean, of.trajectory_std)
        own = np.ones(len(batch))
    else:
        of = batch.units
        given = (batch.rewards, of.trained_tokens, of.token_mean, of.token_std)
        own = tokens_per_row(batch)
    reward, size, mean, std = (np.asarray(values, dtype=np.float64) for values in given)
    return UnitStatistics(reward, size, mean, std, own)


def group_relative(
    batch: Batch,
    *,
    normalize_std: bool,
    std_eps: float,
    std_eps_inside: bool = False,
    bessel: bool = True,
    leave_one_out: bool = False,
    singleton_advantage: Literal["zero", "reward"] = "zero",
    unit: GroupUnit = "sequence",
    std_of: Literal["group", "batch"] = "group",
    shaping: Floats | None = None,
) -> Floats:
    """``(R - mean) / (std + eps)`` per row, float64 ``[R]``, from the statistics stamped on the rows.

    With ``leave_one_out`` the mean is that of the other units, ``n / (n - own)`` times as far away, and the
    standard deviation is taken around these means. ``shaping`` (float64 ``[R]``) is added to the rewards
    and not to the statistics, as in AstraFlow 0.1.2; where a group has no spread it is not divided.
    A group is a singleton if it has one unit (with ``unit = "token"`` one sequence). With ``std_of = "batch"`` all are
    divided by the standard deviation of the rewards of all rows, as in TRL 1.16.0 with ``scale_rewards="batch"``.
    """
    of = group_statistics(batch, unit)
    factor = of.size / np.maximum(of.size - of.own, 1) if leave_one_out else np.ones(len(batch))
    advantages = factor * (of.reward - of.mean)
    single = (batch.group_size if unit == "token" else of.size) == 1
    advantages[single] = of.reward[single] if singleton_advantage == "reward" else 0.0
    if shaping is not None:
        advantages += shaping
    if not normalize_std:
        return advantages
    if std_of == "batch":
        std = np.full(len(batch), of.reward.std(ddof=int(bessel)) if len(batch) > 1 else 0.0)
    else:
        std = of.std * factor
        if not bessel:
            std = std * np.sqrt(np.maximum(of.size - 1, 1) / np.maximum(of.size, 1))
        if singleton_advantage == "reward":
            std[single] = 1.0
    if shaping is not None:
        std = np.where(std > 0, std, 1.0)
    return advantages / (np.sqrt(std**2 + std_eps) if std_eps_inside else std + std_eps)


def moments(
    values: Floats,
    mask: npt.NDArray[np.bool_],
    counts: Floats | None = None,
    epsilon: Epsilon = VERL,
) -> tuple[float, float]:
    """Mean, and ``sqrt(var)`` with ``epsilon``, the variance with n - 1 (0 for a single entry), of the entries in
    ``mask``. Shapes ``[K]``; ``counts``: how often each counts."""
    weight = mask.astype(np.float64) if counts is None else np.where(mask, counts, 0.0)
    total = weight.sum()
    kept = np.where(mask, values, 0.0)
    mean = (weight * kept).sum() / max(total, 1.0)
    variance = (weight * (kept - mean) ** 2).sum() / max(total - 1.0, 1.0)
    return float(mean), epsilon.scale(variance)


def whiten(
    values: Floats,
    mask: npt.NDArray[np.bool_],
    counts: Floats | None = None,
    epsilon: Epsilon = VERL,
) -> Floats:
    """``(v - mean) / sqrt(var)`` with ``epsilon`` over the entries in ``mask``, 0 elsewhere: ``masked_whiten`` of verl
    0.9.1; with ``Epsilon(1e-5, False)`` ``Normalization`` of AReaL 1.0.4, with ``Epsilon(1e-4, False)``
    ``normalize_advantages`` of TRL 1.16.0. Arguments as of :func:`moments`."""
    mean, scale = moments(values, mask, counts, epsilon)
    return np.where(mask, (values - mean) / scale, 0.0)


def tokens_per_row(batch: Batch) -> Floats:
    """Trained tokens of each row, float64 ``[R]``."""
    counts = np.bincount(batch.row_of_token, weights=batch.loss_mask, minlength=len(batch))
    return counts.astype(np.float64)
