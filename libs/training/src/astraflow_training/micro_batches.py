"""Cuts a batch into micro-batches under a budget of tokens, each laid out for one forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from astraflow_core.types import Batch

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """``r`` rows of a batch, laid out as ``B`` × ``T`` input tokens, with ``n`` positions to predict.

    ``input_ids`` int64 ``[B, T]``. ``position_ids`` int64 ``[1, T]`` if rows are packed (``B`` = 1; they
    start again at 0 with each row), else ``None``. For each position to predict, in row order, int64
    ``[n]``: ``positions`` its index among the batch's tokens, ``states`` the index of the hidden state that
    predicts it among the ``B · T``, ``row`` its row within the micro-batch. ``tokens`` counts the inputs
    without padding.
    """

    input_ids: Indices
    position_ids: Indices | None
    positions: Indices
    states: Indices
    row: Indices
    rows: int
    tokens: int

    @property
    def computed(self) -> int:
        """Inputs, padding included."""
        return self.input_ids.size


def micro_batches(
    batch: Batch, wanted: npt.NDArray[np.bool_], budget: int, packed: bool
) -> Iterator[MicroBatch]:
    """Micro-batches that together predict every ``wanted`` token (bool ``[N]``) but the first of a row.

    A row's inputs end before its last wanted token; rows without one are left out. Padding is on the
    right, where a causal model needs no mask against it. Bucketed: rows of similar length, the longest
    first, ``B · T ≤ budget``. Packed: rows in order, ``T ≤ budget``. A longer row goes alone.
    """
    wanted = wanted.copy()
    wanted[batch.offsets[:-1][batch.lengths > 0]] = False
    predicted = np.flatnonzero(wanted)
    rows_of = batch.row_of_token[predicted]
    counts = np.bincount(rows_of, minlength=len(batch))
    firsts = np.cumsum(counts) - counts
    inputs = np.zeros(len(batch), dtype=np.int64)
    filled = np.flatnonzero(counts)
    inputs[filled] = predicted[firsts[filled] + counts[filled] - 1] - batch.offsets[filled]

    for rows in _packs(filled, inputs, budget) if packed else _buckets(filled, inputs, budget):
        widths = inputs[rows]
        if packed:
            starts = np.cumsum(widths) - widths
            place = np.arange(int(widths.sum())) - np.repeat(starts, widths)
            ids = batch.tokens[np.repeat(batch.offsets[rows], widths) + place][None, :]
        else:
            columns = np.arange(int(widths.max()))
            starts = np.arange(len(rows)) * len(columns)
            # Past its end a row repeats its first token: any valid id will do there.
            place = np.where(columns < widths[:, None], columns, 0)
            ids = batch.tokens[batch.offsets[rows][:, None] + place]
        count = counts[rows]
        row = np.repeat(np.arange(len(rows)), count)
        nth = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        positions = predicted[np.repeat(firsts[rows], count) + nth]
        yield MicroBatch(
            input_ids=ids.astype(np.int64),
            position_ids=place[None, :] if packed else None,
            positions=positions,
            states=np.repeat(starts - batch.offsets[rows] - 1, count) + positions,
            row=row,
            rows=len(rows),
            tokens=int(widths.sum()),
        )


def _buckets(rows: Indices, inputs: Indices, budget: int) -> Iterator[Indices]:
    order = rows[np.argsort(-inputs[rows], kind="stable")]
    start = 0
    while start < len(order):
        size = max(1, budget // int(inputs[order[start]]))
        yield np.sort(order[start : start + size])
        start += size


def _packs(rows: Indices, inputs: Indices, budget: int) -> Iterator[Indices]:
    ends = np.cumsum(inputs[rows])
    start = 0
    while start < len(rows):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + budget, side="right")))
        yield rows[start:stop]
        start = stop
