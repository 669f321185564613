"""What the dataflow stamps on rows of whole groups, for batches that did not come through it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from astraflow_core.types import Batch, NamedRewards
from astraflow_runtime.dataflow.rows.statistics import (
    group_statistics,
    spread_in_groups,
    units_of,
)
from astraflow_runtime.dataflow.rows.turns import WholeGroups, turns_of
from astraflow_wire.column_table import SPARSE_COLUMNS
from astraflow_wire.sparse import of_columns


def stamped(batch: Batch, own: npt.NDArray[np.bool_] | None = None) -> Batch:
    """The batch with the statistics of its groups, ``units`` and ``turns``, and those of its ``named_rewards``. Its rows are whole groups, in any order;
    those of a trajectory follow each other in theirs. ``own`` bool ``[R]``: where a reward is of the sequence alone and
    not of its trajectory (default: everywhere)."""
    own = np.ones(len(batch), np.bool_) if own is None else own
    rewards = batch.rewards.astype(np.float64)
    trained = np.bincount(batch.row_of_token, batch.loss_mask, len(batch)).astype(np.int64)
    names, group = np.unique(batch.group, return_inverse=True)
    of = [group_statistics(rewards[group == number]) for number in range(len(names))]
    _, trajectory = np.unique(batch.trajectory, return_inverse=True)
    order = np.lexsort((np.arange(len(batch)), batch.trajectory))
    moved = batch.take(order)
    given = {column.name: getattr(moved, column.name) for column in SPARSE_COLUMNS}
    whole = WholeGroups(
        loss_mask=moved.loss_mask,
        given=of_columns({name: values for name, values in given.items() if values is not None}),
        lengths=moved.lengths.astype(np.int64),
        group=moved.group,
        trajectory=moved.trajectory,
        rewards=rewards[order],
        own=own[order],
    )
    return replace(
        batch,
        group_size=np.array([each.size for each in of], np.int32)[group],
        group_mean=np.array([each.mean for each in of], np.float32)[group],
        group_std=np.array([each.std for each in of], np.float32)[group],
        units=units_of(group, trajectory, rewards, trained, own),
        turns=turns_of(whole),
        named_rewards=_named(batch.named_rewards, group, trajectory),
    )


def _named(
    given: NamedRewards | None, group: npt.NDArray[np.int64], trajectory: npt.NDArray[np.int64]
) -> NamedRewards | None:
    """Those ``given`` with statistics over the trajectories, each of which has the values of its first row."""
    if given is None:
        return None
    first = np.unique(trajectory, return_index=True)[1]
    values = given.earned[:, first].astype(np.float64)
    spreads = [spread_in_groups(group[first], each) for each in values]
    mean, std = (np.array(each)[:, group].astype(np.float32) for each in zip(*spreads, strict=True))
    return NamedRewards(given.names, given.earned[:, first][:, trajectory], mean, std)
