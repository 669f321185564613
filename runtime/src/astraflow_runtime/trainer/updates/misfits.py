"""Removes rows that the trained model cannot process, so that they do not end a run. The dataflow
rejects them if it can read the model's folder; shared rows were checked against the model of the
policy that sampled them.
"""

from __future__ import annotations

import logging

import numpy as np

from astraflow_core.types import Batch
from astraflow_wire.model_files.model_limits import ModelLimits

log = logging.getLogger(__name__)


def without_misfits(batch: Batch, limits: ModelLimits) -> Batch:
    """The batch without rows that have a token id outside of the vocabulary or more tokens than the context; the same
    object if all rows fit. Each group that loses rows is named in the log."""
    if not len(batch) or _fits(batch, limits):
        return batch
    starts = batch.offsets[:-1]
    lowest = np.minimum.reduceat(batch.tokens, starts)
    highest = np.maximum.reduceat(batch.tokens, starts)
    outside = (lowest < 0) | (highest >= limits.vocabulary)
    long = batch.lengths > limits.positions
    for row in np.flatnonzero(outside | long):
        beyond = lowest[row] if lowest[row] < 0 else highest[row]
        reason = (
            f"token id {beyond}, and its model has ids from 0 to {limits.vocabulary - 1}"
            if outside[row]
            else f"{batch.lengths[row]} tokens, and its model a context of {limits.positions}"
        )
        log.warning(
            "batch %s: row %d of group %d is skipped: it has %s",
            batch.id,
            row,
            batch.group[row],
            reason,
        )
    return batch.take(np.flatnonzero(~(outside | long)))


def _fits(batch: Batch, limits: ModelLimits) -> bool:
    tokens = batch.tokens
    inside = bool(tokens.min() >= 0 and tokens.max() < limits.vocabulary)
    return inside and bool(batch.lengths.max() <= limits.positions)
