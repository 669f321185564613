"""Generalized advantages of tokens and of turns, and groups of trajectories, against public code."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from astraflow_testing.stamping import stamped

C = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("public_cases.py"))))
P = C.P
build, completed, loss_of, make = C.build, C.completed, C.loss_of, C.make
STEP = 1e-30


@pytest.mark.parametrize("spread", [0.05, 25.0])
def test_ppo_is_the_estimator_and_the_two_losses_of_verl(spread: float) -> None:
    data = make(5, spread)
    algorithm = build("ppo", {"gamma": 0.9, "lam": 0.7, "kl_coef": 0.1})
    batch = completed(algorithm, data.batch)
    row, place = data.columns
    rewards = data.last(0.1 * (data.old - data.ref))
    advantages, returns = P.verl_gae(rewards, data.values, data.mask, 0.9, 0.7)
    trained = batch.loss_mask
    assert batch.advantages is not None and batch.values is not None
    np.testing.assert_allclose(
        batch.advantages[trained], advantages[row, place][trained], rtol=1e-4, atol=1e-5
    )
    given = np.zeros_like(data.mask)
    given[row, place] = batch.advantages
    loss, _, _, critic = loss_of(algorithm, batch, data.current)
    policy, value = (loss.terms[name][1].item() for name in ("policy", "value"))
    assert policy == pytest.approx(P.verl_vanilla(data.lp, data.old, given, data.mask, 0.2, 0.2))
    predicted = (data.values + np.float32(0.7)).astype(complex)
    expected = P.verl_value_loss(predicted, data.values, returns, data.mask, 0.5)
    assert value == pytest.approx(expected.real, rel=1e-4)
    for token in np.flatnonzero(trained):
        moved = predicted.copy()
        moved[row[token], place[token]] += STEP * 1j
        slope = P.verl_value_loss(moved, data.values, returns, data.mask, 0.5).imag / STEP
        assert critic.grad[token].item() == pytest.approx(slope, rel=1e-3, abs=1e-5)


def turns(seed: int, each: bool) -> Any:
    """Eight rows: trajectories of 3, 2, 1 and 2 turns, two to a group; ``each``: a reward per turn, else one that the
    turns share. The rows of a trajectory follow each other, and each trains one run of tokens."""
    data = make(seed, 0.3, sizes=(5, 3))
    batch = data.batch
    trajectory = np.repeat([9, 4, 7, 5], [3, 2, 1, 2])
    rng = np.random.default_rng(seed)
    rewards = rng.random(8) if each else rng.random(4)[np.repeat(np.arange(4), [3, 2, 1, 2])]
    mask = np.zeros_like(batch.loss_mask)
    for start, end in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
        mask[start + 1 : end] = True
    batch = replace(
        batch, loss_mask=mask, trajectory=trajectory, rewards=rewards.astype(np.float32),
        versions=np.where(mask, 3, -1).astype(np.int32),
    )  # fmt: skip
    batch = stamped(batch, np.full(8, each))
    return replace(data, batch=batch)


@pytest.mark.parametrize("each", [True, False])
@pytest.mark.parametrize("whiten", [True, False])
def test_turns_of_a_trajectory_have_the_estimator_of_claw_r1(each: bool, whiten: bool) -> None:
    batch = turns(3, each).batch
    assert batch.values is not None
    keys = {
        "gae_unit": "turn",
        "gae_scope": "trajectory",
        "gamma": 0.9,
        "lam": 0.6,
        "whiten": whiten,
    }
    algorithm = build("ppo", keys | {"sequence_rewards": "each" if each else "last"})
    last = np.append(np.diff(batch.trajectory) != 0, True)
    reward = batch.rewards * (1 if each else last)
    first = batch.offsets[:-1] + 1
    expected = P.claw_step_gae(reward, batch.values[first], batch.trajectory, 0.9, 0.6)
    goal = expected + batch.values[first]
    if whiten:
        expected = (expected - expected.mean()) / np.sqrt(expected.var(ddof=1) + 1e-8)
    for order in (np.arange(8), np.array([5, 3, 0, 7, 1, 6, 4, 2])):
        moved = batch.take(order)
        moved = replace(moved, advantages=algorithm.advantages(moved))
        moved = replace(moved, current=None, weights=algorithm.weights(moved))
        assert moved.advantages is not None
        starts = moved.offsets[:-1] + 1
        for row, start, end in zip(order, starts, moved.offsets[1:], strict=True):
            np.testing.assert_allclose(moved.advantages[start:end], expected[row], rtol=1e-4)
        np.testing.assert_allclose(moved.weights["returns"][starts], goal[order], rtol=1e-4)
        assert np.flatnonzero(moved.weights["value"]).tolist() == starts.tolist()
        np.testing.assert_allclose(moved.weights["value"][starts], 1 / 8, rtol=1e-6)
        # A mini-batch with parts of trajectories has the targets of the whole.
        part = moved.take(np.array([0, 3, 6]))
        targets = algorithm.weights(replace(part, current=None))["returns"]
        np.testing.assert_allclose(
            targets[part.offsets[:-1] + 1], goal[order[[0, 3, 6]]], rtol=1e-4
        )


def test_tokens_across_turns_are_one_chain() -> None:
    data = turns(8, each=False)
    batch = data.batch
    assert batch.values is not None
    keys = {"gae_scope": "trajectory", "gamma": 0.9, "lam": 0.6, "whiten": False}
    found = build("ppo", keys).advantages(batch)
    for trajectory in np.unique(batch.trajectory):
        rows = np.flatnonzero(batch.trajectory == trajectory)
        chain = np.concatenate(
            [np.arange(batch.offsets[r] + 1, batch.offsets[r + 1]) for r in rows]
        )
        rewards = np.zeros(len(chain))
        rewards[-1] = batch.rewards[rows[-1]]
        mask = np.ones((1, len(chain)))
        values = batch.values[chain][None].astype(float)
        _, returns = P.verl_gae(rewards[None], values, mask, 0.9, 0.6)
        np.testing.assert_allclose(found[chain], (returns - values)[0], rtol=1e-4, atol=1e-6)


def test_runs_of_trained_tokens_are_turns_within_a_row() -> None:
    data = make(4, 0.3)
    batch = data.batch
    assert batch.values is not None
    found = build(
        "ppo", {"gae_unit": "turn", "gamma": 0.9, "lam": 0.6, "whiten": False}
    ).advantages(batch)
    for row, (start, end) in enumerate(zip(batch.offsets[:-1], batch.offsets[1:], strict=True)):
        tokens = start + np.flatnonzero(batch.loss_mask[start:end])
        runs = [
            run for run in np.split(tokens, np.flatnonzero(np.diff(tokens) > 1) + 1) if len(run)
        ]
        rewards = np.zeros(len(runs))
        if runs:
            rewards[-1] = batch.rewards[row]
        values = np.array([batch.values[run[0]] for run in runs])
        expected = P.claw_step_gae(rewards, values, np.zeros(len(runs)), 0.9, 0.6)
        for run, value in zip(runs, expected, strict=True):
            np.testing.assert_allclose(found[run], value, rtol=1e-4)


@pytest.mark.parametrize("each", [True, False])
def test_a_trajectory_counts_once_in_its_group(each: bool) -> None:
    batch = turns(6, each).batch
    found = build("grpo", {"group_unit": "trajectory", "std_eps": 1e-5}).advantages(batch)
    last = np.append(np.diff(batch.trajectory) != 0, True)
    steps = batch.rewards * (1 if each else last)  # where Claw-R1 has an outcome
    expected = P.claw_grpo(steps, batch.trajectory, batch.group, 1e-5)
    for row, (start, end) in enumerate(zip(batch.offsets[:-1], batch.offsets[1:], strict=True)):
        np.testing.assert_allclose(found[start + 1 : end], expected[row], rtol=1e-4, atol=1e-5)
    alone = build("rloo", {"group_unit": "trajectory"}).advantages(batch.take(np.array([0, 7])))
    of = {t: steps[batch.trajectory == t].sum() for t in (9, 4, 7, 5)}
    for start, pair in ((1, (9, 4)), (int(batch.lengths[0]) + 1, (5, 7))):
        assert alone[start] == pytest.approx(of[pair[0]] - of[pair[1]], rel=1e-4)
