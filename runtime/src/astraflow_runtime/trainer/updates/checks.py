"""Checks of a batch and of the trainer's arrays, before the optimizer step."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from astraflow_core.errors import NonFiniteLoss, RunFailed
from astraflow_core.types import Batch
from astraflow_core.types.batch import BATCH_COLUMNS
from astraflow_core.types.named_rewards import NAMED_REWARD_COLUMNS

SERVED = tuple(column for column in BATCH_COLUMNS if column.given != "trainer")


def check_batch(batch: Batch) -> None:
    """Reject a batch whose columns disagree in shape (:class:`RunFailed`), whose groups carry
    statistics of more than one policy, or that has a reward, statistic or trained log-prob that is
    not finite (:class:`NonFiniteLoss`)."""
    rows, tokens = len(batch), int(batch.lengths.sum())
    if len(batch.tokens) != tokens:
        raise RunFailed(
            f"batch {batch.id!r}: lengths add up to {tokens}, tokens has shape {batch.tokens.shape}"
        )
    given = [(c, values) for c in SERVED if (values := getattr(batch, c.name)) is not None]
    for column, values in given:
        _check_shape(batch, column.name, values, rows if column.per == "row" else tokens)
    for column, values in given:
        if column.finite and column.per == "token":
            _check_finite(batch, column.name, values)
        elif column.finite and (bad := np.flatnonzero(~np.isfinite(values))).size:
            raise NonFiniteLoss(
                f"batch {batch.id!r}: {column.name} of {bad.size} of {rows} rows are not finite, the first of row "
                f"{bad[0]} ({values[bad[0]]}, group {batch.group[bad[0]]})"
            )
    _check_named_rewards(batch)
    order = np.argsort(batch.group, kind="stable")
    same = np.diff(batch.group[order]) == 0
    for name in (column.name for column in SERVED if column.statistic):
        values = getattr(batch, name)[order]
        if (apart := np.flatnonzero(same & (np.diff(values) != 0))).size:
            here, there = order[apart[0]], order[apart[0] + 1]
            raise RunFailed(
                f"batch {batch.id!r} of policy {batch.policy!r}: rows {here} and {there} of group "
                f"{batch.group[here]} have different {name} ({values[apart[0]]} and "
                f"{values[apart[0] + 1]}); a group's statistics are per policy, so the group seems to span two policies"
            )


def check_given(batch: Batch, giver: str, values: Mapping[str, npt.NDArray[np.floating]]) -> None:
    """Reject arrays of a trainer or an algorithm that are not one finite number per trained token."""
    for name, array in values.items():
        if array.shape != batch.tokens.shape:
            raise RunFailed(
                f"{giver} gave {name} of shape {array.shape} for batch {batch.id!r}; expected "
                f"{batch.tokens.shape}, one per token"
            )
        _check_finite(batch, f"{name} of {giver}", array)


def _check_named_rewards(batch: Batch) -> None:
    named = batch.named_rewards
    if named is None:
        return
    shape = (len(named.names), len(batch))
    for column in NAMED_REWARD_COLUMNS:
        values = getattr(named, column.name)
        if values.shape != shape:
            raise RunFailed(
                f"batch {batch.id!r}: {column.name} of named rewards has shape {values.shape}, expected {shape}: "
                f"{shape[0]} names and {shape[1]} rows"
            )
        if (bad := np.argwhere(~np.isfinite(values))).size:
            name, row = bad[0].tolist()
            raise NonFiniteLoss(
                f"batch {batch.id!r}: {column.name} of the named reward {named.names[name]!r} of row {row} is "
                f"{values[name, row]}, which is not finite"
            )


def _check_shape(batch: Batch, name: str, array: npt.NDArray[np.generic], size: int) -> None:
    if array.shape != (size,):
        raise RunFailed(
            f"batch {batch.id!r}: {name} has shape {array.shape}, expected ({size},): {len(batch)} rows of "
            f"{len(batch.tokens)} tokens"
        )


def _check_finite(batch: Batch, name: str, array: npt.NDArray[np.floating]) -> None:
    if (bad := np.flatnonzero(batch.loss_mask & ~np.isfinite(array))).size:
        raise NonFiniteLoss(
            f"batch {batch.id!r}: {name} are not finite at {bad.size} of {batch.trained_tokens} trained "
            f"tokens, the first in row {batch.row_of_token[bad[0]]} ({array[bad[0]]})"
        )
