"""The optimal token baseline, from the distributions of the tokens to the variance that it lowers."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

C = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("public_cases.py"))))


def advantages(data: Any, **keys: Any) -> Any:
    return C.build("otb", keys).advantages(data.batch)


def test_it_is_the_formula_on_distributions() -> None:
    """Two rows of two tokens over three words, by hand."""
    data = C.make(4, 0.1, (2,), 4)
    starts = data.batch.offsets[:-1]
    mask = np.zeros(len(data.batch.tokens), np.bool_)
    mask[np.concatenate([starts + 1, starts + 2])] = True
    words = {0: ([0.5, 0.25, 0.25], [0.1, 0.1, 0.8]), 1: ([0.9, 0.05, 0.05], [0.2, 0.6, 0.2])}
    chosen, rewards = {0: (0, 1), 1: (0, 1)}, np.array([1.0, 0.0], np.float32)
    energy, weight = np.zeros(len(mask), np.float32), np.zeros((2, 2))
    for row, distributions in words.items():
        for t, (p, word) in enumerate(zip(distributions, chosen[row], strict=True)):
            energy[starts[row] + 1 + t] = 1 - 2 * p[word] + np.square(p).sum()
            away = np.eye(3)[word] - np.array(p)
            weight[row, t] = np.square(away).sum()
    weight = weight.cumsum(1)
    batch = replace(data.batch, loss_mask=mask, rewards=rewards, logit_gradients=energy)
    found = C.build("otb", {}).advantages(batch)
    baseline = weight[0] / weight.sum(0)
    for row in (0, 1):
        np.testing.assert_allclose(
            found[starts[row] + 1 : starts[row] + 3], rewards[row] - baseline, rtol=1e-6
        )
    assert not found[~mask].any()


def test_rewards_of_turns_count_from_where_they_are_still_to_come() -> None:
    data = C.make(5, 0.1)
    earned = np.zeros(len(data.batch.tokens), np.float32)
    trained = np.flatnonzero(data.batch.loss_mask)
    middle = trained[np.flatnonzero(data.batch.row_of_token[trained] == 0)][1]
    earned[middle] = 0.5
    rewards = data.last()
    row, place = data.columns
    rewards[0, place[middle]] += 0.5
    found = C.build("otb", {"outcome": "whole"}).advantages(
        replace(data.batch, turn_rewards=earned)
    )
    expected = C.P.verl_otb(rewards, data.mask, data.index, data.energy)
    np.testing.assert_allclose(found, expected[row, place], rtol=1e-4, atol=1e-5)


def test_a_row_without_the_others_of_its_group_has_their_mean_as_baseline() -> None:
    batch = C.make(6, 0.1).batch
    found = C.build("otb", {}).advantages(batch.take(np.array([0, 7])))
    rows = batch.take(np.array([0, 7]))
    expected = np.where(rows.group_size > 1, rows.rewards - rows.group_mean, rows.rewards)
    np.testing.assert_allclose(found, np.where(rows.loss_mask, rows.spread(expected), 0), rtol=1e-5)
    assert sorted(rows.group_size) == [1, 4]


def test_the_gradient_by_the_logits_varies_less_than_with_the_mean_as_baseline() -> None:
    """What it is for: one step, where right answers are the likely ones, whose gradient is short."""
    rng = np.random.default_rng(1)
    p = np.array([0.85, 0.05, 0.05, 0.05])
    right = np.array([1.0, 0.0, 0.0, 0.0])
    words = rng.choice(4, p=p, size=4000)
    rows = len(words)
    data = C.make(0, 0.0, (2,))
    batch = replace(
        data.batch,
        lengths=np.full(rows, 2, np.int32),
        tokens=np.zeros(2 * rows, np.int32),
        loss_mask=np.tile([False, True], rows),
        rewards=right[words].astype(np.float32),
        group=np.zeros(rows, np.int64),
        group_size=np.full(rows, rows, np.int32),
        group_mean=np.zeros(rows, np.float32),
        turn_rewards=None,
        logit_gradients=np.repeat(1 - 2 * p[words] + np.square(p).sum(), 2).astype(np.float32),
    )
    found = C.build("otb", {}).advantages(batch)[1::2]
    gradients = np.eye(4)[words] - p

    plain = (right[words] - right[words].mean())[:, None] * gradients
    better = found[:, None] * gradients
    assert better.var(axis=0).sum() < 0.5 * plain.var(axis=0).sum()
    np.testing.assert_allclose(better.mean(axis=0), plain.mean(axis=0), atol=0.01)
