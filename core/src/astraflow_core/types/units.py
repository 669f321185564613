"""The units of a group other than its sequences: whole trajectories, and tokens."""

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
