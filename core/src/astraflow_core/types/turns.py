"""The turns of whole groups, for algorithms that compare turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt

from astraflow_core.types.columns import Column, columns_of


@dataclass(frozen=True)
class GroupTurns:
    """The ``K`` turns that a policy has in all groups of which a batch has rows, also those of rows that it does not
    have: all arrays ``[K]``. The turns of a trajectory follow each other in their order.

    A turn is a run of trained tokens without a hole; a token that ``turn_rewards`` or ``turn_states`` name ends it too.
    What was earned at another token counts for the last turn of the trajectory before it, if there is one.
    """

    group: Annotated[npt.NDArray[np.int64], Column("turn", "group of the turn, as of rows")]
    trajectory: Annotated[
        npt.NDArray[np.int64], Column("turn", "trajectory of the turn, as of rows")
    ]
    sequence: Annotated[
        npt.NDArray[np.int32], Column("turn", "place of its sequence in the trajectory, from 0")
    ]
    last: Annotated[
        npt.NDArray[np.int32], Column("turn", "place of its last token in the sequence, from 0")
    ]
    reward: Annotated[npt.NDArray[np.float32], Column("turn", "what the turn earned")]
    outcome: Annotated[
        npt.NDArray[np.float32],
        Column(
            "turn",
            "at the last turn of a sequence its own reward, at that of a trajectory the one that its sequences share; "
            "0 elsewhere",
        ),
    ]
    rest: Annotated[
        npt.NDArray[np.float32],
        Column("turn", "`outcome` less what the turns of these sequences earned, at the same turn"),
    ]
    state: Annotated[
        npt.NDArray[np.int64],
        Column(
            "turn", "equal for turns that were taken in the same state of their group; 0: not known"
        ),
    ]


TURN_COLUMNS = columns_of(GroupTurns)
"""All arrays of turns."""
