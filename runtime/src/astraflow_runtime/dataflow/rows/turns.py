"""The turns of whole groups, which algorithms compare."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from astraflow_core.types import GroupTurns
from astraflow_wire.sparse import Sparse, SparseValues

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
OF_TURNS = ("turn_rewards", "turn_states")
"""The sparse columns that have a value for a turn, at its last token."""
NOTHING = SparseValues(np.zeros(0, np.int64), np.zeros(0))


@dataclass(frozen=True, slots=True)
class WholeGroups:
    """All ``n`` sequences of some groups, concatenated; those of a trajectory are adjacent and in
    order. ``loss_mask`` bool ``[N]`` and the ``given`` tokens; ``lengths``, ``group`` and
    ``trajectory`` int64 ``[n]``; ``rewards`` float64 ``[n]``, and ``own`` bool ``[n]`` where the
    reward belongs to the sequence alone, not to its trajectory.
    """

    loss_mask: npt.NDArray[np.bool_]
    given: Sparse
    lengths: Ints
    group: Ints
    trajectory: Ints
    rewards: Floats
    own: npt.NDArray[np.bool_]


def turns_of(groups: WholeGroups) -> GroupTurns:
    """The turns of the sequences. Sums are computed in float64."""
    trained, size = groups.loss_mask, len(groups.lengths)
    told = [values for name, values in groups.given.items() if name in OF_TURNS]
    named = [values.positions[trained[values.positions]] for values in told]
    # The first token of a sequence is never trained, so a run ends with its sequence.
    runs = np.flatnonzero(trained[:-1] > trained[1:])
    if trained[-1:].any():
        runs = np.append(runs, len(trained) - 1)
    last = np.unique(np.concatenate([runs, *named])) if named else runs
    ends = np.cumsum(groups.lengths)
    sequence = np.searchsorted(ends, last, "right")
    begins = np.ones(size, np.bool_)
    begins[1:] = np.diff(groups.trajectory) != 0
    chain = np.cumsum(begins) - 1
    first = np.flatnonzero(begins)

    def at_turns(where: Ints, owner: Ints, values: Floats) -> Floats:
        """The sum of ``values`` at each turn: each value is assigned to the last turn of its
        trajectory up to ``where``.
        """
        if not len(where):
            return np.zeros(len(last))
        turn = np.searchsorted(last, where, "right") - 1
        found = turn >= 0
        found[found] = chain[sequence[turn[found]]] == chain[owner[found]]
        return np.bincount(turn[found], values[found], len(last)).astype(np.float64)

    rewards = groups.given.get("turn_rewards", NOTHING)
    owner = np.searchsorted(ends, rewards.positions, "right")
    values = rewards.values.astype(np.float64)
    earned = np.bincount(owner, values, size)
    # A reward that several sequences share counts once, at the end of the trajectory.
    sharing = np.bincount(chain, ~groups.own)[chain]
    outcome = np.where(groups.own, groups.rewards, groups.rewards / np.maximum(sharing, 1))
    end_of_chain = np.append(first[1:], size)[chain] - 1 if size else first
    where = ends[np.where(groups.own, np.arange(size), end_of_chain)] - 1
    states = groups.given.get("turn_states", NOTHING)
    state = np.zeros(len(last), np.int64)
    at = np.flatnonzero(trained[states.positions])
    state[np.searchsorted(last, states.positions[at])] = states.values[at]
    every = np.arange(size)
    ended = at_turns(where, every, outcome)
    return GroupTurns(
        group=groups.group[sequence],
        trajectory=groups.trajectory[sequence],
        sequence=(sequence - first[chain[sequence]]).astype(np.int32),
        last=(last - (ends - groups.lengths)[sequence]).astype(np.int32),
        reward=at_turns(rewards.positions, owner, values).astype(np.float32),
        outcome=ended.astype(np.float32),
        rest=(at_turns(where, every, outcome - earned) if len(owner) else ended).astype(np.float32),
        state=state,
    )
