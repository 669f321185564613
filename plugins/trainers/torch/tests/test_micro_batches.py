"""Micro-batches cover what is wanted, once, within the budget."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainer_cases import make_batch

from astraflow_core.errors import RunFailed
from astraflow_plugin_torch_trainer.trainer import TorchTrainer
from astraflow_training.micro_batches import micro_batches


@given(
    seed=st.integers(0, 10_000),
    rows=st.integers(1, 12),
    budget=st.integers(1, 60),
    packed=st.booleans(),
)
def test_every_wanted_token_is_predicted_once_from_its_own_row(
    seed: int, rows: int, budget: int, packed: bool
) -> None:
    batch = make_batch(seed, rows)
    seen: list[int] = []
    for micro in micro_batches(batch, batch.loss_mask, budget, packed):
        assert micro.computed <= max(budget, micro.input_ids.shape[1])
        assert len(micro.input_ids) == 1 or micro.computed <= budget
        ids = micro.input_ids.reshape(-1)
        width = micro.input_ids.shape[1]
        for position, state, row in zip(micro.positions, micro.states, micro.row, strict=True):
            seen.append(int(position))
            start = int(batch.offsets[batch.row_of_token[position]])
            before = int(position) - start  # this many tokens of the row, and no others, precede it
            np.testing.assert_array_equal(
                ids[state - before + 1 : state + 1], batch.tokens[start:position]
            )
            if packed:
                assert micro.position_ids is not None
                np.testing.assert_array_equal(
                    micro.position_ids[0, state - before + 1 : state + 1], np.arange(before)
                )
            else:
                assert (state // width, state % width) == (row, before - 1)
    assert sorted(seen) == np.flatnonzero(batch.loss_mask).tolist()
    assert len(seen) == len(set(seen))


@pytest.mark.parametrize("packed", [False, True])
def test_rows_are_computed_to_their_last_wanted_token_only(packed: bool) -> None:
    batch = make_batch(rows=40)
    parts = list(micro_batches(batch, batch.loss_mask, 64, packed))
    needed = 0
    for row in range(len(batch)):
        mask = batch.loss_mask[batch.offsets[row] : batch.offsets[row + 1]]
        needed += int(np.flatnonzero(mask).max(initial=0))
    assert sum(micro.tokens for micro in parts) == needed
    padding = 1 - needed / sum(micro.computed for micro in parts)
    assert padding == 0 if packed else padding < 0.15


def test_nothing_wanted_is_no_micro_batch() -> None:
    batch = make_batch()
    assert not list(micro_batches(batch, np.zeros_like(batch.loss_mask), 64, False))
    assert not list(micro_batches(batch, np.zeros_like(batch.loss_mask), 64, True))


def test_a_row_beyond_the_context_of_the_model_is_refused(
    folder: Path, build: Callable[..., TorchTrainer]
) -> None:
    batch = make_batch(rows=4, longest=129)  # shorter than that
    assert np.isfinite(build(folder).logprobs(batch, "current")).all()
    batch = make_batch(rows=9, longest=400)
    row = int(batch.lengths.argmax())
    with pytest.raises(RunFailed, match=f"'b': row {row}, of trajectory {row}, has .* is 128, its"):
        build(folder).logprobs(batch, "current")
