"""Lays rows that begin alike out as trees, in which each shared token is computed once.

The samples of a group share their prompt, the turns of an episode and its branches what came before them. A node of a
tree is a token after all those on the way to it; nodes are in depth-first order, so that the nodes below one follow it
and its mask needs one number, where they end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from astraflow_core.types import Batch
from astraflow_training.micro_batches import Indices, MicroBatch, PredictedTokens, buckets

SHARED_AT_LEAST = 2
"""A row joins a tree if it shares at least one in this many of its tokens: each node is compared with all nodes of its tree,
which costs more than recomputing a few tokens of a prompt."""


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """``nodes`` tokens, int64 each: ``ids``, ``depths``, and ``ends``, the index after the last node below each.
    ``rows`` are in the tree, and ``paths`` lists for each the indices of its tokens."""

    ids: Indices
    depths: Indices
    ends: Indices
    rows: Indices
    paths: Sequence[Indices]


def prefix_trees(batch: Batch, rows: Indices, inputs: Indices, budget: int) -> Iterator[PrefixTree]:
    """Trees of the first ``inputs[row]`` tokens of each of ``rows``, of at most ``budget`` nodes if they have more
    than one row."""
    texts = [_tokens(batch, row, inputs) for row in rows.tolist()]
    # Big-endian bytes compare as the tokens do; what sorts next to each other shares most.
    order = sorted(
        range(len(texts)), key=[text.astype(">i4").tobytes() for text in texts].__getitem__
    )
    tree = _GrowingTree()
    for index in order:
        text = texts[index]
        shared = tree.shared_with(text)
        fits = tree.nodes + len(text) - shared <= budget
        if tree.rows and not (fits and SHARED_AT_LEAST * shared >= len(text)):
            yield tree.grown()
            tree, shared = _GrowingTree(), 0
        tree.add(int(rows[index]), text, shared)
    if tree.rows:
        yield tree.grown()


def tree_micro_batches(
    batch: Batch, wanted: npt.NDArray[np.bool_], budget: int
) -> Iterator[MicroBatch]:
    """As :func:`astraflow_training.micro_batches.micro_batches`, of trees: those of similar size together, padded to
    the largest. Where no tree has two rows, they are bucketed rows, which need no mask."""
    predicted = PredictedTokens.of(batch, wanted)
    trees = list(prefix_trees(batch, predicted.rows, predicted.inputs, budget))
    sizes = np.array([len(tree.ids) for tree in trees], np.int64)
    for chosen in buckets(np.arange(len(trees)), sizes, budget):
        yield _laid_out(batch, predicted, [trees[index] for index in chosen.tolist()])


def _laid_out(batch: Batch, predicted: PredictedTokens, trees: Sequence[PrefixTree]) -> MicroBatch:
    width = max(len(tree.ids) for tree in trees)
    shape = len(trees), width
    ids, depths = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    # Padding sees itself, and nothing sees it.
    ends = np.broadcast_to(np.arange(1, width + 1), shape).copy()
    states = []
    for number, tree in enumerate(trees):
        size = len(tree.ids)
        ids[number] = tree.ids[0]
        ids[number, :size], depths[number, :size], ends[number, :size] = (
            tree.ids,
            tree.depths,
            tree.ends,
        )
        for row, path in zip(tree.rows.tolist(), tree.paths, strict=True):
            positions, _ = predicted.of_rows(np.array([row]))
            states.append(number * width + path[positions - int(batch.offsets[row]) - 1])
    rows = np.concatenate([tree.rows for tree in trees])
    positions, row_of = predicted.of_rows(rows)
    branched = len(rows) > len(trees)
    return MicroBatch(
        input_ids=ids,
        position_ids=depths if branched else None,
        positions=positions,
        states=np.concatenate(states),
        row=row_of,
        rows=len(rows),
        tokens=sum(len(tree.ids) for tree in trees),
        ends=ends if branched else None,
    )


class _GrowingTree:
    """A tree to which rows are added in the order of their tokens."""

    def __init__(self) -> None:
        self.nodes = 0
        self.rows: list[int] = []
        self._texts: list[Indices] = []
        self._shared: list[int] = []
        self._paths: list[Indices] = []

    def shared_with(self, text: Indices) -> int:
        """How many tokens the next row shares with the tree: with the last row, since rows are sorted."""
        if not self._texts:
            return 0
        last = self._texts[-1]
        both = min(len(last), len(text))
        differs = np.flatnonzero(last[:both] != text[:both])
        return int(differs[0]) if len(differs) else both

    def add(self, row: int, text: Indices, shared: int) -> None:
        """Add a row whose first ``shared`` tokens are there."""
        new = np.arange(self.nodes, self.nodes + len(text) - shared)
        path = np.concatenate([self._paths[-1][:shared], new]) if shared else new
        self.nodes += len(new)
        self.rows.append(row)
        self._texts.append(text)
        self._shared.append(shared)
        self._paths.append(path)

    def grown(self) -> PrefixTree:
        """The tree of all rows."""
        ends = np.full(self.nodes, self.nodes, np.int64)
        new = [len(text) - shared for text, shared in zip(self._texts, self._shared, strict=True)]
        firsts = np.cumsum(new) - new
        for index in range(1, len(new)):
            # Nothing more is added below the shared part of the row.
            ends[self._paths[index - 1][self._shared[index] :]] = firsts[index]
        parts = list(zip(self._texts, self._shared, strict=True))
        return PrefixTree(
            np.concatenate([text[shared:] for text, shared in parts]),
            np.concatenate([np.arange(shared, len(text)) for text, shared in parts]),
            ends,
            np.array(self.rows, np.int64),
            self._paths,
        )


def _tokens(batch: Batch, row: int, inputs: Indices) -> Indices:
    start = int(batch.offsets[row])
    found: Indices = batch.tokens[start : start + int(inputs[row])].astype(np.int64)
    return found
