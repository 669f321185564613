"""Rewards that episodes have by name, for algorithms that normalise each of them in its group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt

from astraflow_core.types.columns import Column, columns_of


@dataclass(frozen=True)
class NamedRewards:
    """``K`` rewards, of each row of a batch: all arrays ``[K, R]``, in the order of ``names``.

    Each is a metric of the episode (``Trajectory.metrics``): ``NAME/POLICY`` with the policy that sampled the row, else
    ``NAME``. The statistics are over *all* trajectories of the group in which that policy has sequences, each counting
    once, since a batch may split groups.
    """

    names: tuple[str, ...]
    earned: Annotated[
        npt.NDArray[np.float32], Column("row", "what the trajectory earned under the name")
    ]
    mean: Annotated[
        npt.NDArray[np.float32],
        Column("row", "mean of `earned` over the trajectories of the group"),
    ]
    std: Annotated[
        npt.NDArray[np.float32], Column("row", "their standard deviation, with n-1; 0 for one")
    ]

    def take(self, rows: npt.NDArray[np.int64]) -> NamedRewards:
        """Those of the given rows, in that order."""
        taken = (getattr(self, column.name)[:, rows] for column in NAMED_REWARD_COLUMNS)
        return NamedRewards(self.names, *taken)


NAMED_REWARD_COLUMNS = columns_of(NamedRewards)
"""All arrays of named rewards."""
