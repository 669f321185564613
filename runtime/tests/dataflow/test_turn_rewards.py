"""Rewards of turns reach the batch with the tokens that they belong to, whatever way these take."""

from __future__ import annotations

from itertools import pairwise

import pytest

from astraflow_core.types import Batch
from astraflow_wire.batches import encode_batch


def by_row(batch: Batch) -> list[list[float]]:
    assert batch.turn_rewards is not None
    ends = batch.offsets.tolist()
    return [batch.turn_rewards[start:end].tolist() for start, end in pairwise(ends)]


@pytest.fixture
def b(bench, config, tmp_path):
    return bench(config(policy__batch_sequences=4), journal=tmp_path).begin()


@pytest.mark.parametrize("restarted", [False, True])
def test_rows_with_and_without_them_share_a_batch(b, restarted):
    (first, second), _ = b.lease(4)
    b.push(first, length=5)
    b.push(second, length=4, turn_rewards={1: 0.5, 3: -2.0})
    if restarted:
        b.restart()
    batch = b.next_batch(0)
    expected = {5: [0.0] * 5, 4: [0.0, 0.5, 0.0, -2.0]}
    assert by_row(batch) == [expected[length] for length in batch.lengths.tolist()]
    assert batch.rewards.tolist() == [0.0, 1.0] * 2
    if restarted:
        b.restart()
        assert encode_batch(b.next_batch(0)) == encode_batch(batch)


def test_a_batch_without_any_has_none(b):
    (first, second, third), _ = b.lease(6)
    for task in (first, second):
        b.push(task)
    assert b.next_batch(0).turn_rewards is None
    b.push(third, turn_rewards={3: 1.0})


@pytest.mark.parametrize("restarted", [False, True])
def test_they_move_with_the_parts_of_a_group(bench, config, tmp_path, restarted):
    keys = {
        "run__group_size": 2,
        "run__group_deadline_s": 10,
        "run__refill_groups": True,
        "policy__batch_sequences": 2,
    }
    b = bench(config(**keys), journal=tmp_path).begin()
    (task,), _ = b.lease(2)
    assert b.push(task, rewards=(0.0,), late=1).status == "partial"
    (rest,), _ = b.lease(1)
    assert b.push(rest, rewards=(1.0,), turn_rewards={2: 0.5}).status == "accepted"
    if restarted:
        b.restart()
    assert by_row(b.next_batch(0)) == [[0.0] * 5, [0.0, 0.0, 0.5, 0.0, 0.0]]
