"""Shares a batch among the ranks of a trainer, the same on every rank."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from astraflow_core.types import Batch
from astraflow_training.layouts import Layout, cut
from astraflow_training.micro_batches import Indices, MicroBatch, PredictedTokens
from astraflow_training.prefix_trees import prefix_trees


@dataclass(frozen=True, slots=True)
class Share:
    """``rows`` int64 ``[r]`` of a batch, ascending, ``tokens`` int64 ``[n]``: where their tokens lie in the
    whole batch, and ``batch``: these rows as a batch, with the whole's ``weights``."""

    rows: Indices
    tokens: Indices
    batch: Batch


def rows_of_ranks(costs: npt.NDArray[np.int64], ranks: int) -> list[Indices]:
    """Rows for each rank, ascending, so that the largest sum of ``costs`` (``[R]``) is small: the costliest
    first, each to the rank that has the least yet (LPT, Graham 1969: at most 4/3 of the best)."""
    loads = [(0, 0, rank) for rank in range(ranks)]
    given: list[list[int]] = [[] for _ in range(ranks)]
    for row in np.argsort(-costs, kind="stable").tolist():
        load, count, rank = heapq.heappop(loads)
        given[rank].append(row)
        heapq.heappush(loads, (load + int(costs[row]), count + 1, rank))
    return [np.sort(np.array(rows, np.int64)) for rows in given]


def share(batch: Batch, rank: int, ranks: int) -> Share:
    """What ``rank`` of ``ranks`` computes of a batch. The shares are disjoint, together the batch, and of
    nearly equal numbers of tokens."""
    if ranks == 1:
        return Share(np.arange(len(batch)), np.arange(len(batch.tokens)), batch)
    return _of_rows(batch, rows_of_ranks(batch.lengths.astype(np.int64), ranks)[rank])


def _of_rows(batch: Batch, rows: Indices) -> Share:
    lengths = batch.lengths[rows].astype(np.int64)
    first = np.cumsum(lengths) - lengths
    tokens = np.arange(int(lengths.sum())) + np.repeat(batch.offsets[:-1][rows] - first, lengths)
    return Share(rows, tokens, batch.take(rows))


def _whole_trees(
    batch: Batch, wanted: npt.NDArray[np.bool_], budget: int, ranks: int
) -> list[Share]:
    """The shares of all ranks, of which none has a part of a tree; rows that predict nothing are in that of rank 0."""
    predicted = PredictedTokens.of(batch, wanted)
    trees = list(prefix_trees(batch, predicted.rows, predicted.inputs, budget))
    rest = np.setdiff1d(np.arange(len(batch)), predicted.rows)
    found = []
    sizes = np.array([len(tree.ids) for tree in trees], np.int64)
    for rank, mine in enumerate(rows_of_ranks(sizes, ranks)):
        rows = [trees[index].rows for index in mine.tolist()] + ([] if rank else [rest])
        found.append(_of_rows(batch, np.sort(np.concatenate([np.zeros(0, np.int64), *rows]))))
    return found


def even_micro_batches(
    batch: Batch, wanted: npt.NDArray[np.bool_], budget: int, layout: Layout, rank: int, ranks: int
) -> tuple[Share, list[MicroBatch]]:
    """The share of ``rank`` and its micro-batches (``positions`` among the tokens of the share), of which
    each rank has as many: the forward pass of a sharded model is a collective. Those that a rank has too few
    of are :func:`idle` ones.

    ``wanted`` (bool ``[N]``), ``budget`` and ``layout`` as for :func:`cut`, of the whole batch.
    """
    if layout == "tree" and batch.routed_experts is None and not batch.images and ranks > 1:
        shares = _whole_trees(batch, wanted, budget, ranks)
    else:
        shares = [share(batch, other, ranks) for other in range(ranks)]
    cuts = [list(cut(part.batch, wanted[part.tokens], budget, layout)) for part in shares]
    mine = cuts[rank]
    missing = max(len(each) for each in cuts) - len(mine)
    return shares[rank], mine + [idle(batch, layout)] * missing


def idle(batch: Batch, layout: Layout) -> MicroBatch:
    """A forward pass of one token of ``batch`` that predicts nothing: its part in the loss is 0."""
    nothing = np.zeros(0, np.int64)
    return MicroBatch(
        input_ids=batch.tokens[:1].astype(np.int64)[None, :],
        position_ids=None if layout == "bucketed" else np.zeros((1, 1), np.int64),
        positions=nothing,
        states=nothing,
        row=nothing,
        rows=0,
        tokens=0,
        ends=np.ones((1, 1), np.int64) if layout == "tree" else None,
    )
