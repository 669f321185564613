"""Recorded experts reach the batch with the tokens that they belong to, whatever way these take."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from astraflow_core.errors import WireError
from astraflow_runtime.trainer.updates.update import replayed_fraction
from astraflow_wire.batches import encode_batch
from astraflow_wire.experts.layers import ExpertLayers

MODEL = ExpertLayers(layers=2, top_k=2, experts=200)


def routed(mark, tokens=5):
    found = np.full((tokens, 2, 2), mark, np.uint8)
    found[:, 1, 1] = np.arange(tokens)
    return found


def recording(b, *policies):
    for policy in policies:
        b.state.limits[policy] = replace(b.state.limits[policy], experts=MODEL)
    return b


@pytest.fixture
def b(bench, config, tmp_path):
    return recording(bench(config(policy__batch_sequences=4), journal=tmp_path).begin(), "solver")


@pytest.mark.parametrize("restarted", [False, True])
def test_rows_with_and_without_them_share_a_batch(b, restarted):
    (first, second), _ = b.lease(4)
    b.push(first, routed=[None, routed(7)])
    b.push(second, length=4)
    if restarted:
        b.restart()
    batch = b.next_batch(0)
    given = batch.routed_experts
    assert batch.lengths.tolist() == [5, 5, 4, 4] and given.shape == (18, 2, 2)
    assert (given[:5] == 255).all() and np.array_equal(given[5:10], routed(7))
    assert (given[10:] == 255).all()
    assert replayed_fraction(batch) == 0.25
    if restarted:
        b.restart()
        assert encode_batch(b.next_batch(0)) == encode_batch(batch)


def test_a_batch_without_any_has_none(b):
    for task in b.lease(4)[0]:
        b.push(task)
    assert b.next_batch(0).routed_experts is None


def test_they_are_refused_where_they_are_not_recorded(bench, config, tmp_path):
    b = bench(config(policy__batch_sequences=4), journal=tmp_path).begin()
    (task, _), _ = b.lease(4)
    with pytest.raises(WireError, match="'solver' are not recorded in this run"):
        b.push(task, routed=[routed(1), routed(2)])


@pytest.mark.parametrize("which", [0, 1])
def test_they_move_with_the_parts_of_a_group(bench, config, tmp_path, which):
    keys = {
        "run__group_size": 2,
        "run__group_deadline_s": 10,
        "run__refill_groups": True,
        "policy__batch_sequences": 2,
    }
    b = recording(bench(config(**keys), journal=tmp_path).begin(), "solver")
    given = [[], []]
    given[which] = [routed(4)]
    (task,), _ = b.lease(2)
    b.push(task, rewards=(0.0,), late=1, routed=given[0])
    (rest,), _ = b.lease(1)
    b.push(rest, rewards=(1.0,), routed=given[1])
    found = b.next_batch(0).routed_experts
    assert np.array_equal(found[5 * which :][:5], routed(4))
    assert (found[5 * (1 - which) :][:5] == 255).all()
