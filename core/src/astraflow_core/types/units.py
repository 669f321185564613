"""What counts in a group beside its sequences: whole trajectories, and tokens."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Units:
    """Per row of a batch (``[R]``), stamped at acceptance over *all* sequences that the policy has in the
    group, since a batch may split groups and trajectories.

    ``turn`` int32, place of the sequence among those of its trajectory, from 0; ``turns`` int32, their
    number; ``trajectory_reward`` float32, the mean of their rewards.

    ``trajectories`` int32, ``trajectory_mean`` and ``trajectory_std`` float32: over the trajectories of the
    group, each with its ``trajectory_reward`` (std with n-1, 0 for one). ``trained_tokens`` int32,
    ``token_mean`` and ``token_std`` float32: over the trained tokens of the group, each with the reward of
    its sequence.
    """

    turn: npt.NDArray[np.int32]
    turns: npt.NDArray[np.int32]
    trajectory_reward: npt.NDArray[np.float32]
    trajectories: npt.NDArray[np.int32]
    trajectory_mean: npt.NDArray[np.float32]
    trajectory_std: npt.NDArray[np.float32]
    trained_tokens: npt.NDArray[np.int32]
    token_mean: npt.NDArray[np.float32]
    token_std: npt.NDArray[np.float32]

    def take(self, rows: npt.NDArray[np.int64]) -> Units:
        """Those of the given rows, in that order."""
        return Units(**{entry.name: getattr(self, entry.name)[rows] for entry in fields(self)})


def units_of(
    group: npt.NDArray[np.int64],
    trajectory: npt.NDArray[np.int64],
    rewards: npt.NDArray[np.floating],
    tokens: npt.NDArray[np.integer],
) -> Units:
    """The units of sequences that make up whole groups, all ``[n]``: ``group`` and ``trajectory`` number
    them from 0, with or without gaps (a trajectory lies within one group), ``tokens`` counts the trained
    ones. In float64 inside."""
    values = rewards.astype(np.float64)
    turns = np.bincount(trajectory)
    rewarded = np.bincount(trajectory, weights=values) / np.maximum(turns, 1)
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
