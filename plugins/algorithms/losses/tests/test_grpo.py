"""GRPO against a float64 numpy reference written from the formulas, and its invariances."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from astraflow_core.types import Batch, ComponentContext, LossInputs, RunInfo
from astraflow_plugin_losses.algorithms.grpo import Grpo, GrpoConfig
from astraflow_plugin_losses.schedule import piecewise_linear
from astraflow_runtime.dataflow.rows.statistics import group_statistics


def grpo(**keys: Any) -> Grpo:
    run = RunInfo("test", 0, 1, 0, ("p",), Path("."))
    context = ComponentContext(run=run, role="trainer", policy="p", seed=0, directory=Path("."))
    return Grpo(GrpoConfig(**keys), context)


def make_batch(seed: int = 0, sizes: tuple[int, ...] = (4, 3, 1)) -> Batch:
    """Ragged rows with holes in the mask, one row without a trained token, a group of one at the end."""
    rng = np.random.default_rng(seed)
    count = sum(sizes)
    lengths = rng.integers(3, 12, count).astype(np.int32)
    total = int(lengths.sum())
    starts = np.cumsum(lengths) - lengths
    mask = rng.random(total) < 0.6
    mask[starts] = False
    mask[starts + 1] = True
    mask[starts[1] : starts[1] + lengths[1]] = False
    rewards = rng.random(count).astype(np.float32)
    groups = np.repeat(np.arange(len(sizes)), sizes)
    of_group = [rewards[groups == g].astype(np.float64) for g in range(len(sizes))]
    mean = np.array([r.mean() for r in of_group], dtype=np.float32)
    std = np.array([r.std(ddof=1) if len(r) > 1 else 0.0 for r in of_group], dtype=np.float32)
    return Batch(
        id="b",
        policy="p",
        version=1,
        lengths=lengths,
        tokens=rng.integers(0, 9, total).astype(np.int32),
        loss_mask=mask,
        logprobs=(-2 * rng.random(total)).astype(np.float32),
        versions=np.where(mask, 0, -1).astype(np.int32),
        rewards=rewards,
        group=groups.astype(np.int64),
        trajectory=np.arange(count, dtype=np.int64),
        group_size=np.array(sizes, dtype=np.int32)[groups],
        group_mean=mean[groups],
        group_std=std[groups],
    )


def prepared(algorithm: Grpo, batch: Batch) -> Batch:
    return replace(batch, advantages=algorithm.advantages(batch), weights=algorithm.weights(batch))


def inputs(batch: Batch, logprobs: Any, entropy: Any, reference: Any, step: int = 0) -> LossInputs:
    def tensor(values: Any) -> torch.Tensor:
        return torch.as_tensor(values, dtype=torch.float64)

    assert batch.advantages is not None
    return LossInputs(
        logprobs=logprobs if isinstance(logprobs, torch.Tensor) else tensor(logprobs),
        behaviour=tensor(batch.logprobs),
        advantages=tensor(batch.advantages),
        mask=torch.from_numpy(batch.loss_mask),
        row=torch.from_numpy(batch.row_of_token),
        rows=len(batch),
        weights={term: tensor(share) for term, share in batch.weights.items()},
        step=step,
        entropy=entropy if isinstance(entropy, torch.Tensor) else tensor(entropy),
        reference=tensor(reference),
    )


def total(loss: Any) -> torch.Tensor:
    return sum(coefficient * value for coefficient, value in loss.terms.values())


def drawn(batch: Batch, spread: float, seed: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Current log-probs within ``spread`` of the behaviour's, entropies, reference log-probs."""
    rng = np.random.default_rng(seed)
    n = len(batch.tokens)
    current = batch.logprobs + rng.uniform(-spread, spread, n)
    return current, rng.random(n) * 3, current + rng.uniform(-spread, spread, n)


def reference_loss(
    batch: Batch, current: Any, entropy: Any, reference: Any, beta: float, bonus: float
) -> dict[str, float]:
    """Token by token, in Python floats, from the papers."""
    surrogate, kl, entropies, clipped, ratios = [], [], [], [], []
    for token in np.flatnonzero(batch.loss_mask):
        row = int(batch.row_of_token[token])
        rewards = batch.rewards[batch.group == batch.group[row]].astype(np.float64)
        advantage = 0.0
        if len(rewards) > 1:
            advantage = (float(batch.rewards[row]) - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)
        ratio = float(np.exp(current[token] - np.float64(batch.logprobs[token])))
        bounded = min(max(ratio, 0.8), 1.28)
        surrogate.append(-min(ratio * advantage, bounded * advantage))
        gap = reference[token] - current[token]
        kl.append(np.exp(gap) - gap - 1)
        entropies.append(entropy[token])
        clipped.append((ratio < 0.8 and advantage < 0) or (ratio > 1.28 and advantage > 0))
        ratios.append(ratio)
    return {
        "loss": float(np.mean(surrogate) + beta * np.mean(kl) - bonus * np.mean(entropies)),
        "kl": float(np.mean(kl)),
        "entropy": float(np.mean(entropies)),
        "clip_fraction": float(np.mean(clipped)),
        "ratio_mean": float(np.mean(ratios)),
        "ratio_square_mean": float(np.mean(np.square(ratios))),
        "second_moment": float(np.mean(np.log(ratios) ** 2)),
        "approx_kl": float(np.mean(np.array(ratios) - 1 - np.log(ratios))),
    }


KEYS: dict[str, Any] = {"clip_high": 0.28, "kl_coef": 0.05, "entropy_coef": 0.1}


@pytest.mark.parametrize("spread", [0.05, 1.0, 25.0])
def test_loss_and_metrics_equal_the_reference(spread: float) -> None:
    algorithm = grpo(**KEYS)
    batch = prepared(algorithm, make_batch())
    current, entropy, reference = drawn(batch, spread)
    loss = algorithm.loss(inputs(batch, current, entropy, reference))
    expected = reference_loss(batch, current, entropy, reference, 0.05, 0.1)
    assert total(loss).item() == pytest.approx(expected.pop("loss"), rel=1e-5)
    assert {name: value.item() for name, value in loss.metrics.items()} == pytest.approx(
        expected, rel=1e-5
    )


def test_on_policy_gradient_is_minus_the_weighted_advantage() -> None:
    algorithm = grpo()
    batch = prepared(algorithm, make_batch())
    logprobs = torch.tensor(batch.logprobs, dtype=torch.float64, requires_grad=True)
    zeros = np.zeros(len(batch.tokens))
    total(algorithm.loss(inputs(batch, logprobs, zeros, zeros))).backward()
    np.testing.assert_allclose(
        logprobs.grad.numpy(), -batch.advantages * batch.weights["policy"], rtol=1e-6
    )


def test_what_masked_positions_hold_has_no_influence() -> None:
    algorithm = grpo(**KEYS)
    batch = prepared(algorithm, make_batch())
    arrays = drawn(batch, 0.5)
    outcomes = []
    for garbage in (None, np.nan, np.inf, -1e30):
        fill = [a.copy() for a in arrays]
        changed = batch
        if garbage is not None:
            for array in fill:
                array[~batch.loss_mask] = garbage
            assert batch.advantages is not None
            dirty = {
                name: np.where(batch.loss_mask, value, np.float32(garbage))
                for name, value in (
                    ("logprobs", batch.logprobs),
                    ("advantages", batch.advantages),
                )
            }
            changed = replace(batch, **dirty)
        logprobs = torch.tensor(fill[0], requires_grad=True)
        entropies = torch.tensor(fill[1], requires_grad=True)
        loss = algorithm.loss(inputs(changed, logprobs, entropies, fill[2]))
        total(loss).backward()
        outcomes.append(
            (
                total(loss).item(),
                {name: value.item() for name, value in loss.metrics.items()},
                logprobs.grad.tolist(),
                entropies.grad.tolist(),
            )
        )
    assert all(outcome == outcomes[0] for outcome in outcomes[1:])
    assert not torch.tensor(outcomes[0][2])[~torch.from_numpy(batch.loss_mask)].any()


def test_advantages_follow_the_stamped_statistics_when_a_group_is_split() -> None:
    algorithm = grpo()
    batch = make_batch()
    whole = algorithm.advantages(batch)
    rows = np.array([0, 5])
    part = algorithm.advantages(batch.take(rows))
    expected = np.concatenate([whole[batch.offsets[r] : batch.offsets[r + 1]] for r in rows])
    np.testing.assert_array_equal(part, expected)
    assert part.dtype == np.float32


def test_advantages_match_what_acceptance_stamps() -> None:
    rewards = np.array([0.0, 1.0, 1.0, 0.25])
    stamped = group_statistics(rewards)
    batch = replace(
        make_batch(sizes=(4,)),
        rewards=rewards.astype(np.float32),
        group_size=np.full(4, stamped.size, dtype=np.int32),
        group_mean=np.full(4, stamped.mean, dtype=np.float32),
        group_std=np.full(4, stamped.std, dtype=np.float32),
    )
    expected = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)
    got = grpo().advantages(batch)
    for row in (0, 2, 3):
        values = got[batch.offsets[row] : batch.offsets[row + 1]]
        trained = batch.loss_mask[batch.offsets[row] : batch.offsets[row + 1]]
        np.testing.assert_allclose(values[trained], expected[row], rtol=1e-5)
        assert not values[~trained].any()


def test_equal_rewards_and_groups_of_one_give_no_advantage() -> None:
    batch = make_batch()
    equal = replace(
        batch,
        rewards=np.full(len(batch), 0.1, dtype=np.float32),
        group_mean=np.full(len(batch), 0.1, dtype=np.float32),
        group_std=np.zeros(len(batch), dtype=np.float32),
    )
    assert not grpo(std_eps=1e-6).advantages(equal).any()
    last = grpo(normalize_std=False).advantages(batch)[batch.offsets[-2] :]
    assert batch.group_size[-1] == 1
    assert not last.any()


def test_without_std_the_advantage_is_the_distance_from_the_mean() -> None:
    batch = make_batch()
    expected = batch.spread(batch.rewards - batch.group_mean)
    expected[batch.group_size[batch.row_of_token] == 1] = 0
    np.testing.assert_allclose(
        grpo(normalize_std=False).advantages(batch)[batch.loss_mask],
        expected[batch.loss_mask],
        rtol=1e-6,
    )


def test_a_batch_without_trained_tokens_has_a_loss_of_zero() -> None:
    algorithm = grpo(**KEYS)
    batch = make_batch()
    batch = prepared(algorithm, replace(batch, loss_mask=np.zeros_like(batch.loss_mask)))
    current, entropy, reference = drawn(batch, 0.5)
    loss = algorithm.loss(inputs(batch, current, entropy, reference))
    assert total(loss).item() == 0.0
    assert all(value.item() == 0.0 for value in loss.metrics.values())


def test_weights_of_every_term_add_up_to_one() -> None:
    algorithm = grpo(**KEYS)
    batch = make_batch()
    weights = algorithm.weights(batch)
    assert set(weights) == {"policy", "kl", "entropy"}
    for share in weights.values():
        assert share.dtype == np.float32
        assert not share[~batch.loss_mask].any()
        assert share.sum() == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize(
    ("keys", "needs"),
    [
        ({}, set()),
        ({"kl_coef": 0.1}, {"reference"}),
        ({"entropy_coef": 0.01}, {"entropy"}),
        ({"entropy_coef": [[0, 0.0], [9, 0.0]]}, set()),
        ({"entropy_coef": [[0, 0.1], [9, 0.0]], "kl_coef": 1}, {"entropy", "reference"}),
    ],
)
def test_needs_follow_the_keys(keys: dict[str, Any], needs: set[str]) -> None:
    assert grpo(**keys).needs == needs


def test_entropy_bonus_follows_its_schedule() -> None:
    knots = ((0.0, 0.1), (40.0, 0.1), (80.0, 0.0))
    values = [piecewise_linear(knots, step) for step in (0, 39, 40, 60, 79, 80, 500)]
    assert values == pytest.approx([0.1, 0.1, 0.1, 0.05, 0.0025, 0.0, 0.0])
    assert piecewise_linear(0.3, 7) == 0.3
    algorithm = grpo(entropy_coef=knots)
    batch = prepared(algorithm, make_batch())
    current, entropy, reference = drawn(batch, 0.1)
    coefficient, _ = algorithm.loss(inputs(batch, current, entropy, reference, step=60)).terms[
        "entropy"
    ]
    assert coefficient == pytest.approx(-0.05)


@pytest.mark.parametrize(
    "keys",
    [
        {"clip_low": 1.5},
        {"std_eps": 0},
        {"entropy_coef": [[40, 0.1], [40, 0.0]]},
        {"entropy_coef": []},
        {"cliplow": 0.2},
    ],
)
def test_bad_keys_are_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        GrpoConfig(**keys)
