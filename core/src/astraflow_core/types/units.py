"""What counts in a group beside its sequences: whole trajectories, and tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt

from astraflow_core.types.columns import Column, columns_of


@dataclass(frozen=True)
class Units:
    """Per row of a batch (``[R]``), stamped at acceptance over *all* sequences that the policy has in the
    group, since a batch may split groups and trajectories.

    Of the sequence: its place among those of its trajectory, their number, and what the trajectory earned. Of the
    group, to normalise over trajectories: their number, mean and standard deviation, each with its
    ``trajectory_reward``; and to normalise over trained tokens the same.
    """

    turn: Annotated[
        npt.NDArray[np.int32],
        Column("row", "place of the sequence among those of its trajectory, from 0"),
    ]
    turns: Annotated[npt.NDArray[np.int32], Column("row", "sequences of its trajectory")]
    trajectory_reward: Annotated[
        npt.NDArray[np.float32],
        Column(
            "row",
            "what the trajectory earned: the rewards that its sequences have of their own, and once the reward that others share",
        ),
    ]
    trajectories: Annotated[npt.NDArray[np.int32], Column("row", "trajectories of the whole group")]
    trajectory_mean: Annotated[
        npt.NDArray[np.float32], Column("row", "mean of `trajectory_reward` over them")
    ]
    trajectory_std: Annotated[
        npt.NDArray[np.float32],
        Column("row", "their standard deviation, with n-1; 0 for one"),
    ]
    trained_tokens: Annotated[
        npt.NDArray[np.int32], Column("row", "trained tokens of the whole group")
    ]
    token_mean: Annotated[
        npt.NDArray[np.float32],
        Column("row", "mean over these tokens, each with the reward of its sequence"),
    ]
    token_std: Annotated[
        npt.NDArray[np.float32],
        Column("row", "their standard deviation, with n-1; 0 for one"),
    ]

    def take(self, rows: npt.NDArray[np.int64]) -> Units:
        """Those of the given rows, in that order."""
        return Units(**{c.name: getattr(self, c.name)[rows] for c in UNIT_COLUMNS})


UNIT_COLUMNS = columns_of(Units)
"""All arrays of units."""


def units_of(
    group: npt.NDArray[np.int64],
    trajectory: npt.NDArray[np.int64],
    rewards: npt.NDArray[np.floating],
    tokens: npt.NDArray[np.integer],
    own: npt.NDArray[np.bool_] | None = None,
) -> Units:
    """The units of sequences that make up whole groups, all ``[n]``: ``group`` and ``trajectory`` number
    them from 0, with or without gaps (a trajectory lies within one group), ``tokens`` counts the trained
    ones, ``own`` is set where a reward is of the sequence alone (default: everywhere) and not set where it is that of
    the trajectory. In float64 inside."""
    values = rewards.astype(np.float64)
    turns = np.bincount(trajectory)
    shared = np.zeros(len(values), dtype=np.bool_) if own is None else ~own
    sharing = np.bincount(trajectory, weights=shared)
    # A reward that several sequences share counts once: one over their number of each.
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
