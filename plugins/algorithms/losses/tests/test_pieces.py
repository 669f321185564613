"""Pieces by themselves: hand-worked examples, loops, and invariances over drawn batches."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from astraflow_core.catalog import Catalog
from astraflow_core.errors import UserError
from astraflow_core.types import Batch
from astraflow_plugin_losses.algorithms.dapo import overlong_penalty
from astraflow_plugin_losses.normalization import group_relative, whiten
from astraflow_plugin_losses.returns import gae, returns_to_go, token_rewards
from astraflow_plugin_losses.second_moment import left, m2po_repo_bounds
from astraflow_plugin_losses.shares import shares

AGGREGATIONS: tuple[Any, ...] = (
    "token_mean", "prompt_mean", "seq_mean_token_mean", "seq_mean_token_mean_all_rows",
    "seq_mean_token_sum", "seq_mean_token_sum_norm", "const_norm_all_rows",
)  # fmt: skip


def batch_of(masks: list[list[bool]], rewards: list[float] | None = None) -> Batch:
    """One group per row unless said otherwise."""
    rows, mask = len(masks), np.array([m for row in masks for m in row], bool)
    values = np.array(rewards if rewards is not None else [1.0] * rows, np.float32)
    return Batch(
        id="b", policy="p", version=1, lengths=np.array([len(m) for m in masks], np.int32),
        tokens=np.zeros(len(mask), np.int32), loss_mask=mask,
        logprobs=np.zeros(len(mask), np.float32), versions=np.where(mask, 0, -1).astype(np.int32),
        rewards=values, group=np.arange(rows), trajectory=np.arange(rows),
        group_size=np.ones(rows, np.int32), group_mean=values,
        group_std=np.zeros(rows, np.float32),
    )  # fmt: skip


def grouped(rewards: list[float]) -> Batch:
    batch = batch_of([[False, True]] * len(rewards), rewards)
    n, values = len(rewards), np.array(rewards)
    std = values.std(ddof=1) if n > 1 else 0.0
    return replace(
        batch, group=np.zeros(n, np.int64), group_size=np.full(n, n, np.int32),
        group_mean=np.full(n, values.mean(), np.float32),
        group_std=np.full(n, std, np.float32),
    )  # fmt: skip


masks = st.lists(st.lists(st.booleans(), min_size=1, max_size=7), min_size=1, max_size=6)
unit = st.floats(0, 1)


@given(masks=masks, gamma=unit, lam=unit, seed=st.integers(0, 9))
def test_gae_is_its_recursion_over_trained_tokens(
    masks: list[list[bool]], gamma: float, lam: float, seed: int
) -> None:
    batch = batch_of(masks)
    rewards, values = np.random.default_rng(seed).normal(size=(2, len(batch.tokens)))
    expected = np.zeros(len(batch.tokens))
    for row in range(len(batch)):
        after = trace = 0.0
        for t in reversed(range(batch.offsets[row], batch.offsets[row + 1])):
            if batch.loss_mask[t]:
                trace = rewards[t] + gamma * after - values[t] + gamma * lam * trace
                after = values[t]
                expected[t] = trace
    np.testing.assert_allclose(gae(batch, rewards, values, gamma, lam), expected, atol=1e-12)


def test_gae_by_hand() -> None:
    batch = batch_of([[False, True, False, True]])  # the hole is not a step
    rewards, values = np.array([9.0, 1.0, 9.0, 2.0]), np.array([9.0, 0.5, 9.0, 1.0])
    # last: 2 - 1 = 1; first: 1 + 0.5·1 - 0.5 + 0.5·0.5·1
    np.testing.assert_allclose(gae(batch, rewards, values, 0.5, 0.5), [0, 1.25, 0, 1])
    np.testing.assert_allclose(returns_to_go(batch, rewards, 0.5), [0, 2, 0, 2])


def test_outcomes_stand_at_the_last_trained_token() -> None:
    batch = batch_of([[False, True, True, False], [False, False], [True]], [3.0, 5.0, 7.0])
    assert token_rewards(batch, batch.rewards).tolist() == [0, 0, 3, 0, 0, 0, 7]
    assert not token_rewards(batch_of([[False], [False]]), np.ones(2)).any()
    assert not returns_to_go(batch_of([[False]]), np.ones(1)).any()


@given(masks=masks)
def test_shares_are_those_of_nested_means(masks: list[list[bool]]) -> None:
    batch = batch_of(masks)
    filled, everyone = sum(map(any, masks)), len(masks)
    values = np.random.default_rng(0).normal(size=len(batch.tokens))
    rows = np.split(values, batch.offsets[1:-1])
    kept = [v[np.array(m)] for v, m in zip(rows, masks, strict=True)]
    means, sums = [v.mean() for v in kept if len(v)], [v.sum() for v in kept if len(v)]
    trained = np.concatenate(kept)
    expected = {
        "token_mean": trained.mean() if filled else 0,
        "prompt_mean": np.mean(means) if filled else 0,  # a row is a prompt here
        "seq_mean_token_mean": np.mean(means) if filled else 0,
        "seq_mean_token_mean_all_rows": np.sum(means) / everyone,
        "seq_mean_token_sum": np.mean(sums) if filled else 0,
        "seq_mean_token_sum_norm": np.mean(sums) / 5 if filled else 0,
        "const_norm_all_rows": np.sum(sums) / (5 * everyone),
    }
    for mode in AGGREGATIONS:
        share = shares(batch, mode, 5)
        assert share.dtype == np.float32 and not share[~batch.loss_mask].any()
        assert float(share @ values) == pytest.approx(expected[mode], rel=1e-5, abs=1e-6)


@given(
    rewards=st.lists(st.integers(-8, 8).map(lambda x: x / 4), min_size=2, max_size=8),
    shift=st.integers(-4, 4),
)
def test_group_advantages_ignore_a_constant_and_sum_to_zero(
    rewards: list[float], shift: int
) -> None:
    keys: dict[str, Any] = {"normalize_std": True, "std_eps": 1e-4}
    one = group_relative(grouped(rewards), **keys)
    other = group_relative(grouped([r + shift for r in rewards]), **keys)
    np.testing.assert_allclose(one, other, atol=2e-2 if np.ptp(rewards) == 0 else 1e-4)
    assert one.sum() == pytest.approx(0, abs=1e-2)
    alone = group_relative(grouped(rewards), leave_one_out=True, normalize_std=False, std_eps=1e-4)
    others = [(sum(rewards) - r) / (len(rewards) - 1) for r in rewards]
    np.testing.assert_allclose(alone, np.array(rewards) - others, atol=1e-5)


def test_group_advantages_by_hand() -> None:
    batch = grouped([0.0, 1.0, 1.0, 0.0])
    root = math.sqrt(1 / 3)
    sign = np.array([-1, 1, 1, -1])
    plain: dict[str, Any] = {"normalize_std": True, "std_eps": 0.5}
    near: dict[str, Any] = {"rtol": 1e-6}
    np.testing.assert_allclose(group_relative(batch, **plain), sign * 0.5 / (root + 0.5), **near)
    inside = group_relative(batch, std_eps_inside=True, **plain)
    np.testing.assert_allclose(inside, sign * 0.5 / math.sqrt(1 / 3 + 0.5), **near)
    biased = group_relative(batch, bessel=False, **plain)
    np.testing.assert_allclose(biased, sign * 0.5 / (0.5 + 0.5), **near)
    single = grouped([3.0])
    assert group_relative(single, singleton_advantage="reward", **plain).tolist() == [3.0 / 1.5]
    assert group_relative(single, **plain).tolist() == [0.0]


def test_whitening_by_hand_and_without_entries() -> None:
    values, mask = np.array([1.0, 3.0, 99.0]), np.array([True, True, False])
    np.testing.assert_allclose(whiten(values, mask), [-1 / 2**0.5, 1 / 2**0.5, 0])
    assert whiten(values, mask, np.array([3.0, 1.0, 7.0])).tolist() == pytest.approx([-0.5, 1.5, 0])
    assert not whiten(values, np.zeros(3, bool)).any()
    assert not whiten(values, np.array([True, False, False])).any()


def test_overlong_penalty_by_hand() -> None:
    tokens = np.array([0.0, 6, 8, 10, 14])
    assert overlong_penalty(tokens, "piecewise", 10, 4).tolist() == [0, 0, -0.5, -1, -1]
    assert overlong_penalty(tokens, "linear", 10, 4).tolist() == [0, 0, -0.5, -1, -2]


@pytest.mark.parametrize(
    ("moments", "kept"),
    [
        ([0.25] * 5, [4]),
        ([0.25, 0.01, 0.25, 0.01, 0.0625], [1, 3, 4]),
        ([0.01, 0.16, 0.01, 0.16, 0.0], [0, 2, 3, 4]),
        ([0.04, 0.01], [0, 1]),
        ([], []),
    ],
)
def test_of_equal_moments_only_as_many_stay_as_the_threshold_allows(
    moments: list[float], kept: list[int]
) -> None:
    given = torch.tensor([math.inf, *moments], dtype=torch.float64)
    counted = torch.tensor([False] + [True] * len(moments))
    stays = left(given, counted, 0.05).nonzero()[:, 0] - 1
    assert stays.tolist() == kept


@pytest.mark.parametrize("counted", [0, 3])
def test_without_excess_the_m2po_repository_clips_at_a_ratio_of_100_000(counted: int) -> None:
    moment = torch.full((counted,), 0.01)
    low, high = m2po_repo_bounds(moment, moment > 0, 0.05)
    # kpo_clip_harmful_tokens returns the ratios 0.0 and 100000; compute_m2po_policy_loss takes 1 from them
    assert (1 - low.item(), 1 + high.item()) == (0.0, 100_000.0)


@pytest.mark.parametrize(
    ("use", "keys", "told"),
    [
        ("dr_grpo", {}, "max_tokens"),
        ("grpo", {"aggregation": "const_norm_all_rows"}, "needs max_tokens"),
        ("grpo", {"corrections": [{"mode": "mask"}]}, "proximal = 'recompute'"),
        ("grpo", {"proximal": "recompute", "corrections": [{"mode": "mask", "low": 3}]}, "above high"),
        ("opo", {"leave_one_out": True}, "needs group_unit = 'sequence'"),
        ("m2po", {"variant": "mask_areal", "proximal": "recompute", "scope": "micro_batch",
                  "aggregation": "prompt_mean"}, "needs aggregation = 'token_mean'"),
        ("dapo", {"overlong": "linear", "max_tokens": 4}, "overlong_tokens"),
        ("m2po", {"variant": "mask_areal"}, "needs proximal = 'recompute'"),
        ("m2po", {"variant": "paper"}, "clip_range_astraflow"),
        ("sapo", {"clip_low": 0.2}, "clip_low"),
    ],
)  # fmt: skip
def test_keys_that_do_not_go_together_are_refused(
    use: str, keys: dict[str, Any], told: str
) -> None:
    with pytest.raises(UserError, match=told):
        Catalog.discover().validate_options("algorithm", use, keys, "policies.p.algorithm")
