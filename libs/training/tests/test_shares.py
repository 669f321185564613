from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from astraflow_core.types import Batch
from astraflow_training.micro_batches import micro_batches
from astraflow_training.shares import even_micro_batches, rows_of_ranks, share

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=24)


def batch_of(lengths: list[int], seed: int = 0) -> Batch:
    rows, tokens = len(lengths), sum(lengths)
    rng = np.random.default_rng(seed)
    return Batch(
        id="b",
        policy="p",
        version=0,
        lengths=np.array(lengths, np.int32),
        tokens=rng.integers(0, 50, tokens).astype(np.int32),
        loss_mask=rng.random(tokens) < 0.5,
        logprobs=-rng.random(tokens).astype(np.float32),
        versions=np.zeros(tokens, np.int32),
        rewards=np.arange(rows, dtype=np.float32),
        group=np.arange(rows, dtype=np.int64),
        trajectory=np.arange(rows, dtype=np.int64),
        group_size=np.ones(rows, np.int32),
        group_mean=np.zeros(rows, np.float32),
        group_std=np.zeros(rows, np.float32),
        weights={"policy": rng.random(tokens).astype(np.float32)},
    )


@given(LENGTHS, st.integers(1, 5))
def test_the_shares_are_the_batch(lengths: list[int], ranks: int) -> None:
    batch = batch_of(lengths)
    shares = [share(batch, rank, ranks) for rank in range(ranks)]
    assert sorted(np.concatenate([s.rows for s in shares])) == list(range(len(lengths)))
    found = np.full(len(batch.tokens), -1)
    weights = np.zeros(len(batch.tokens), np.float32)
    for part in shares:
        found[part.tokens] = part.batch.tokens
        weights[part.tokens] = part.batch.weights["policy"]
    assert (found == batch.tokens).all()
    assert (weights == batch.weights["policy"]).all()
    # Graham's bound for a rule that never leaves a rank idle: the mean and one row more.
    loads = [int(part.batch.lengths.sum()) for part in shares]
    assert max(loads) <= sum(lengths) / ranks + max(lengths)


def test_the_load_is_balanced_by_tokens_and_not_by_rows() -> None:
    rows = rows_of_ranks(np.array([8, 1, 1, 1, 1, 1, 1, 1, 1]), 2)
    assert [r.tolist() for r in rows] == [[0], [1, 2, 3, 4, 5, 6, 7, 8]]
    equal = rows_of_ranks(np.zeros(5, np.int64), 2)
    assert [len(r) for r in equal] == [3, 2]


@given(LENGTHS, st.integers(1, 4), st.booleans())
def test_every_rank_makes_as_many_forward_passes(
    lengths: list[int], ranks: int, packed: bool
) -> None:
    batch = batch_of(lengths)
    cuts = [
        even_micro_batches(batch, batch.loss_mask, 32, packed, rank, ranks) for rank in range(ranks)
    ]
    assert len({len(cut) for _, cut in cuts}) == 1
    predicted = [part.tokens[micro.positions] for part, cut in cuts for micro in cut]
    alone = [micro.positions for micro in micro_batches(batch, batch.loss_mask, 32, packed)]
    assert sorted(np.concatenate([*predicted, []])) == sorted(np.concatenate([*alone, []]))
    for _, cut in cuts:
        for micro in cut:
            assert (micro.states < micro.input_ids.size).all()
            assert micro.input_ids.size
