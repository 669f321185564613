"""Statistics of whole groups, which are stamped on rows because a batch may split groups."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from astraflow_core.types import Units


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """Size, mean and standard deviation (n-1, 0 for one) of the rewards of a policy's sequences in a
    group, stamped when the group is accepted, since a batch may split groups."""

    size: int
    mean: float
    std: float


def group_statistics(rewards: npt.NDArray[np.floating[Any]]) -> GroupStatistics:
    """Statistics over ``rewards`` ``[n]``, computed in float64."""
    values = np.asarray(rewards, dtype=np.float64)
    size = values.size
    if size == 0:
        return GroupStatistics(0, 0.0, 0.0)
    mean = float(values.sum()) / size
    # Not by values.std(), which costs five times as much for a few values.
    distances = values - mean
    variance = float((distances * distances).sum()) / (size - 1) if size > 1 else 0.0
    return GroupStatistics(size, mean, math.sqrt(variance))


def units_of(
    group: npt.NDArray[np.int64],
    trajectory: npt.NDArray[np.int64],
    rewards: npt.NDArray[np.floating],
    tokens: npt.NDArray[np.integer],
    own: npt.NDArray[np.bool_] | None = None,
) -> Units:
    """The units of sequences that make up whole groups, all ``[n]``: ``group`` and ``trajectory`` number
    them from 0, with or without gaps (a trajectory lies within one group), ``tokens`` counts the trained
    ones, ``own`` is set where a reward belongs to the sequence alone (default: everywhere), not to
    its trajectory. Computed in float64."""
    values = rewards.astype(np.float64)
    turns = np.bincount(trajectory)
    shared = np.zeros(len(values), dtype=np.bool_) if own is None else ~own
    sharing = np.bincount(trajectory, weights=shared)
    # A reward that ``n`` sequences share counts once: each has the weight 1/n.
    each = np.where(shared, values / np.maximum(sharing, 1)[trajectory], values)
    rewarded = np.bincount(trajectory, weights=each).astype(np.float64)
    owner = np.zeros(len(turns), dtype=np.int64)
    owner[trajectory] = group
    order = np.argsort(trajectory, kind="stable")
    turn = np.empty(len(values), dtype=np.int32)
    turn[order] = np.arange(len(values)) - np.repeat(np.cumsum(turns) - turns, turns)
    groups = int(group.max()) + 1 if len(group) else 0
    there = (turns > 0).astype(np.float64)
    by_trajectory = _statistics(owner, rewarded, there, groups)
    by_token = _statistics(group, values, tokens.astype(np.float64), groups)
    return Units(
        turn,
        turns[trajectory].astype(np.int32),
        rewarded[trajectory].astype(np.float32),
        by_trajectory[0][group].astype(np.int32),
        by_trajectory[1][group].astype(np.float32),
        by_trajectory[2][group].astype(np.float32),
        by_token[0][group].astype(np.int32),
        by_token[1][group].astype(np.float32),
        by_token[2][group].astype(np.float32),
    )


def _statistics(
    group: npt.NDArray[np.int64],
    values: npt.NDArray[np.float64],
    weight: npt.NDArray[np.float64],
    size: int,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Count, mean and standard deviation (n-1) of ``values`` in each group, each counted ``weight`` times."""
    count = np.bincount(group, weights=weight, minlength=size).astype(np.float64)
    mean = np.bincount(group, weights=weight * values, minlength=size) / np.maximum(count, 1)
    square = np.bincount(group, weights=weight * (values - mean[group]) ** 2, minlength=size)
    return count, mean, np.sqrt(square / np.maximum(count - 1, 1))


def spread_in_groups(
    group: npt.NDArray[np.int64], values: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Mean and standard deviation (n-1, 0 for one) of ``values`` ``[n]`` in each group; ``group`` numbers them from 0
    without gaps."""
    size = int(group.max()) + 1 if len(group) else 0
    _, mean, std = _statistics(group, values, np.ones(len(values)), size)
    return mean, std
