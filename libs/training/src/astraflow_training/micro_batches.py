"""Cuts a batch into micro-batches under a budget of tokens, each laid out for one forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from astraflow_core.errors import RunFailed
from astraflow_core.types import Batch, Images, ImageSpan
from astraflow_core.types.generation import RoutedExperts, images_between, not_recorded

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """``r`` rows of a batch, laid out as ``B`` × ``T`` input tokens, with ``n`` positions to predict.

    ``input_ids`` int64 ``[B, T]``. ``position_ids`` int64 ``[1, T]`` if rows are packed (``B`` = 1; they
    start again at 0 with each row), ``[B, T]`` in trees, else ``None``. For each position to predict, in row
    order, int64 ``[n]``: ``positions`` its index among the batch's tokens, ``states`` the index of the hidden
    state that predicts it among the ``B · T``, ``row`` its row within the micro-batch. ``tokens`` counts the
    inputs without padding. ``ends`` int64 ``[B, T]`` in trees, else ``None``: input ``i`` sees ``j`` of its own
    tree if ``j ≤ i < ends[j]``. ``routed`` ``[B · T, layers, top_k]``: the recorded experts of the inputs, if the batch has
    such; padding has none. ``images``: those among the inputs, by their places among the ``B · T``, the last cut where the
    inputs of its row end.
    """

    input_ids: Indices
    position_ids: Indices | None
    positions: Indices
    states: Indices
    row: Indices
    rows: int
    tokens: int
    ends: Indices | None = None
    routed: RoutedExperts | None = None
    images: Images = ()

    @property
    def computed(self) -> int:
        """Inputs, padding included."""
        return self.input_ids.size


@dataclass(frozen=True, slots=True)
class PredictedTokens:
    """What of a batch is predicted. ``positions`` int64 ``[n]``, ascending: indices among its tokens. Of each row,
    int64 ``[R]``: ``counts``, how many of them are its; ``firsts``, the first of them; ``inputs``, how many tokens
    of the row a model has to read for them. ``rows`` are those with any."""

    positions: Indices
    counts: Indices
    firsts: Indices
    inputs: Indices
    rows: Indices

    @classmethod
    def of(cls, batch: Batch, wanted: npt.NDArray[np.bool_]) -> PredictedTokens:
        """Every ``wanted`` token (bool ``[N]``) but the first of a row, before which there is none to read."""
        wanted = wanted.copy()
        wanted[batch.offsets[:-1][batch.lengths > 0]] = False
        positions = np.flatnonzero(wanted)
        counts = np.bincount(batch.row_of_token[positions], minlength=len(batch))
        firsts = np.cumsum(counts) - counts
        inputs = np.zeros(len(batch), dtype=np.int64)
        rows = np.flatnonzero(counts)
        inputs[rows] = positions[firsts[rows] + counts[rows] - 1] - batch.offsets[rows]
        return cls(positions, counts, firsts, inputs, rows)

    def of_rows(self, rows: Indices) -> tuple[Indices, Indices]:
        """The positions of these rows, one row after the other, and for each the index of its row in ``rows``."""
        count = self.counts[rows]
        nth = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        positions = self.positions[np.repeat(self.firsts[rows], count) + nth]
        return positions, np.repeat(np.arange(len(rows)), count)


def check_context(batch: Batch, context: int | None) -> None:
    """:class:`RunFailed` if a row has more tokens than the ``context`` of the model that is trained (``None``: any may
    have), whose positions beyond it mean nothing."""
    longest = int(batch.lengths.max(initial=0))
    if context is not None and longest > context:
        row = int(batch.lengths.argmax())
        raise RunFailed(
            f"batch {batch.id!r}: row {row}, of trajectory {int(batch.trajectory[row])}, has {longest} tokens, and the "
            f"context of the model that is trained is {context}, its max_position_embeddings: lower [sampling] max_tokens, "
            "have the workflow or the RaaS end episodes earlier, or train a model with a longer context"
        )


def micro_batches(
    batch: Batch, wanted: npt.NDArray[np.bool_], budget: int, packed: bool
) -> Iterator[MicroBatch]:
    """Micro-batches that together predict every ``wanted`` token (bool ``[N]``) but the first of a row.

    A row's inputs end before its last wanted token; rows without one are left out. Padding is on the
    right, where a causal model needs no mask against it. Bucketed: rows of similar length, the longest
    first, ``B · T ≤ budget``. Packed: rows in order, ``T ≤ budget``. A longer row goes alone.
    """
    predicted = PredictedTokens.of(batch, wanted)
    inputs = predicted.inputs
    cut = _packs if packed else buckets
    for rows in cut(predicted.rows, inputs, budget):
        widths = inputs[rows]
        if packed:
            starts = np.cumsum(widths) - widths
            place = np.arange(int(widths.sum())) - np.repeat(starts, widths)
            read = (np.repeat(batch.offsets[rows], widths) + place)[None, :]
            padding = None
        else:
            columns = np.arange(int(widths.max()))
            starts = np.arange(len(rows)) * len(columns)
            # Past its end a row repeats its first token: any valid id will do there.
            padding = columns >= widths[:, None]
            place = np.where(padding, 0, columns)
            read = batch.offsets[rows][:, None] + place
        positions, row = predicted.of_rows(rows)
        yield MicroBatch(
            input_ids=batch.tokens[read].astype(np.int64),
            position_ids=place[None, :] if packed else None,
            positions=positions,
            states=(starts - batch.offsets[rows] - 1)[row] + positions,
            row=row,
            rows=len(rows),
            tokens=int(widths.sum()),
            routed=_routed(batch, read, padding),
            images=_images(batch, rows, starts, widths),
        )


def _routed(
    batch: Batch, read: Indices, padding: npt.NDArray[np.bool_] | None
) -> RoutedExperts | None:
    if batch.routed_experts is None:
        return None
    routed = batch.routed_experts[read.ravel()]
    if padding is not None:
        routed[padding.ravel()] = not_recorded(routed.dtype)
    return routed


def _images(batch: Batch, rows: Indices, starts: Indices, widths: Indices) -> Images:
    """Those of the first ``widths[i]`` tokens of each of ``rows``, whose first input is number ``starts[i]``."""
    if not batch.images:
        return ()
    found: list[ImageSpan] = []
    for row, start, width in zip(rows.tolist(), starts.tolist(), widths.tolist(), strict=True):
        first = int(batch.offsets[row])
        found += (
            replace(image, length=min(image.length, start + width - image.start))
            for image in images_between(batch.images, first, first + width, start)
        )
    return tuple(found)


def buckets(rows: Indices, inputs: Indices, budget: int) -> Iterator[Indices]:
    """Rows of similar length, the longest first: as many as fit into ``budget`` when padded to
    the longest, or one."""
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
