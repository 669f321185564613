"""Every policy loss against its formulas (reference.py): values and gradients."""

from __future__ import annotations

import math
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from astraflow_core.catalog import Catalog
from astraflow_core.types import Batch, ComponentContext, LossInputs, RunInfo

STEP = 1e-30
Reference: Any = runpy.run_path(str(Path(__file__).with_name("reference.py")))["Reference"]
BOTH = {"kl_coef": 0.1, "entropy_coef": 0.02}
ROW_MEANS = (
    "prompt_mean",
    "seq_mean_token_mean",
    "seq_mean_token_mean_all_rows",
    "seq_mean_token_sum",
)
RECOMPUTE = {"proximal": "recompute"}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("grpo", BOTH),
    ("grpo", {"std_eps_inside": True, "bessel": False, "leave_one_out": True, "dual_clip": 1.5}),
    ("grpo", {"singleton_advantage": "reward", "whiten": "token", "aggregation": "const_norm_all_rows", "max_tokens": 7}),
    ("grpo", {"whiten": "row", "aggregation": "seq_mean_token_sum_norm", "max_tokens": 7}),
    ("grpo", {"whiten": "token", "whiten_eps": 0.3, "whiten_eps_inside": False}),
    ("reinforce_pp", {"whiten_eps": 0.3, "whiten_eps_inside": False}),
    ("ppo", {"whiten_eps": 0.3, "gamma": 0.9}),
    *(("grpo", {"aggregation": mode}) for mode in ROW_MEANS),
    *(
        ("grpo", {"kl_coef": 0.3, "kl_estimator": estimator, "kl_clamp": clamp})
        for estimator in ("k1", "k2", "k3", "k1_plus", "k3_plus")
        for clamp in ("none", "verl", "areal")
    ),
    ("grpo", {"kl_coef": 0.3, "kl_in": "reward", "kl_estimator": "k2"}),
    *(
        ("grpo", RECOMPUTE | {"corrections": [{"mode": mode, "level": level, "high": 1.2} | low]})
        for mode, low in (("truncate", {}), ("truncate", {"low": 0.9}), ("mask", {"low": 0.8}), ("reject", {"low": 0.8}))
        for level in ("token", "sequence", "geometric")
    ),
    ("grpo", {"proximal": "loglinear", "corrections": [{"mode": "truncate", "high": 1.1}]}),
    ("grpo", {"off_policy_delta": 0.05}),
    ("grpo", {"off_policy_delta": 0}),
    ("grpo", {"log_ratio_clamp": 0.1, "clip_low": 0.5, "clip_high": 0.5}),
    ("dr_grpo", {"max_tokens": 9}),
    ("dapo", {}),
    ("dapo", {"overlong": "piecewise", "max_tokens": 5, "overlong_tokens": 3}),
    ("dapo", {"overlong": "linear", "max_tokens": 3, "overlong_tokens": 2, "overlong_factor": 0.5}),
    ("rloo", {}),
    ("reinforce_pp", {}),
    ("reinforce_pp", {"baseline": "group", "kl_coef": 0.1, "gamma": 0.9}),
    ("reinforce_pp", RECOMPUTE | {"kl_coef": 0.1, "kl_in": "loss"}),
    ("ppo", {}),
    ("ppo", {"gamma": 0.9, "lam": 0.7, "kl_coef": 0.1, "whiten": False, "value_clip": None}),
    ("ppo", RECOMPUTE | {"value_loss": "huber", "value_coef": 0.3, "value_clip": 0.2, "lam": 0.5}),
    ("opd", {}),
    ("opd", {"discount": 0.8, "coef": 0.5, "kl_coef": 0.1, "kl_in": "reward"} | RECOMPUTE),
    ("cispo", {}),
    ("cispo", {"clip_low": 0.2, "clip_high": 0.3} | BOTH),
    ("gspo", {}),
    ("gspo", {"clip_low": 0.1, "clip_high": 0.1} | BOTH),
    ("gspo", {"form": "token", "aggregation": "seq_mean_token_mean", "clip_low": 0.1, "clip_high": 0.1}),
    ("sapo", {}),
    ("sapo", BOTH | RECOMPUTE),
    ("decoupled_ppo", {}),
    ("decoupled_ppo", {"proximal": "loglinear"}),
    ("m2po", {}),
    ("m2po", {"threshold": 1e-9}),
    ("m2po", {"threshold": 50.0}),
    ("m2po", {"variant": "clip_range_m2po_repo"}),
    ("m2po", {"variant": "clip_range_m2po_repo", "threshold": 0.3}),
    ("m2po", {"variant": "clip_range_m2po_repo", "threshold": 100.0}),
    ("m2po", RECOMPUTE | {"variant": "mask_areal"}),
    ("m2po", RECOMPUTE | {"variant": "mask_areal", "threshold": 0.3}),
]  # fmt: skip


def make(seed: int, spread: float) -> tuple[Batch, Any, Any]:
    """Groups of 4, 3 (equal rewards), 1 and 2; holes; the second row trains nothing. Log-probs of all
    policies within ``spread`` of the behaviour policy's, as float32 numbers."""
    rng = np.random.default_rng(seed)
    sizes = (4, 3, 1, 2)
    group = np.repeat(np.arange(4), sizes)
    lengths = rng.integers(3, 10, 10).astype(np.int32)
    total, starts = int(lengths.sum()), np.cumsum(lengths) - lengths
    mask = rng.random(total) < 0.65
    mask[starts + 1] = True
    mask[starts] = False
    mask[starts[1] : starts[1] + lengths[1]] = False
    rewards = rng.random(10)
    rewards[group == 1] = 0.25
    rewards = rewards.astype(np.float32)
    of = [rewards[group == g].astype(np.float64) for g in range(4)]
    behaviour = (-4 * rng.random(total)).astype(np.float32)

    def near(share: float = 1.0) -> Any:
        return (behaviour + share * spread * rng.uniform(-1, 1, total)).astype(np.float32)

    current = near()
    batch = Batch(
        id="b", policy="p", version=6, lengths=lengths,
        tokens=rng.integers(0, 9, total).astype(np.int32), loss_mask=mask, logprobs=behaviour,
        versions=np.where(mask, rng.integers(2, 7, total), -1).astype(np.int32), rewards=rewards,
        group=group.astype(np.int64), trajectory=np.arange(10),
        group_size=np.array(sizes, np.int32)[group],
        group_mean=np.array([x.mean() for x in of], np.float32)[group],
        group_std=np.array([x.std(ddof=1) if len(x) > 1 else 0 for x in of], np.float32)[group],
        reference=near(), proximal=near(0.6), current=current,
        values=(12 * rng.normal(size=total)).astype(np.float32),
    )  # fmt: skip
    return batch, current.astype(np.float64), 3 * rng.random(total)


def moved(batch: Batch) -> Any:
    """What the critic says now."""
    return batch.values.astype(np.float64) + 0.7 * np.cos(np.arange(len(batch.tokens)))


def found(name: str, keys: dict[str, Any], batch: Batch, current: Any, entropy: Any) -> Any:
    """Advantages, loss and gradients of the component."""
    selected, config = Catalog.discover().validate_options("algorithm", name, keys, "test")
    run = RunInfo("test", 0, 1, 0, ("p",), Path("."))
    context = ComponentContext(run=run, role="trainer", policy="p", seed=0, directory=Path("."))
    algorithm: Any = selected.build(config, context)
    optional = ("reference", "proximal", "current", "values")
    hidden = {n: None for n in optional if n not in algorithm.needs}
    batch = replace(batch, **hidden)
    batch = replace(batch, advantages=algorithm.advantages(batch))
    batch = replace(batch, weights=algorithm.weights(batch))

    def tensor(values: Any) -> Any:
        return None if values is None else torch.tensor(values, dtype=torch.float64)

    leaf, spread = tensor(current).requires_grad_(), tensor(entropy).requires_grad_()
    critic = None if batch.values is None else tensor(moved(batch)).requires_grad_()
    loss = algorithm.loss(
        LossInputs(
            logprobs=leaf, behaviour=tensor(batch.logprobs), advantages=tensor(batch.advantages),
            mask=torch.from_numpy(batch.loss_mask), row=torch.from_numpy(batch.row_of_token),
            rows=len(batch), weights={n: tensor(w) for n, w in batch.weights.items()}, step=0,
            entropy=spread, proximal=tensor(batch.proximal), reference=tensor(batch.reference),
            current=tensor(batch.current), values=tensor(batch.values), predicted_values=critic,
        )
    )  # fmt: skip
    total = sum(coefficient * value for coefficient, value in loss.terms.values())
    total.backward()
    loss.metrics["critic"] = None if critic is None else critic.grad
    return batch.advantages, total.item(), leaf.grad.numpy(), loss.metrics


@pytest.mark.parametrize("spread", [0.05, 0.6, 25.0])
@pytest.mark.parametrize(
    ("name", "keys"), CASES, ids=lambda x: x if isinstance(x, str) else str(x)[:70]
)
def test_values_and_gradients_are_those_of_the_formula(
    name: str, keys: dict[str, Any], spread: float
) -> None:
    batch, current, entropy = make(seed=int(spread * 20) + 1, spread=spread)
    advantages, value, gradient, metrics = found(name, keys, batch, current, entropy)
    reference = Reference(name, keys, batch)
    for t in range(len(current)):
        expected = reference.advantages.get(t, 0.0)
        assert advantages[t] == pytest.approx(expected, rel=2e-5, abs=2e-5)
    # What follows compares the losses: both from the same (float32) advantages.
    reference.advantages = {t: float(advantages[t]) for t in reference.trained}
    point = [complex(x) for x in current]
    expected = reference.loss(point, current, entropy).real
    if name == "ppo":
        critic = [complex(x) for x in moved(batch)]
        expected += reference.value_loss(critic).real
        for t in range(len(critic)):
            critic[t] += STEP * 1j
            slope = reference.value_loss(critic).imag / STEP
            critic[t] = complex(critic[t].real)
            assert metrics["critic"][t].item() == pytest.approx(slope, rel=2e-5, abs=1e-6)
    assert value == pytest.approx(expected, rel=1e-5, abs=1e-6)
    on_the_bound = set()
    if "m2_low" in metrics:
        low, high = reference.m2_bounds(current)
        for t in reference.trained:
            r = math.exp(current[t] - float(batch.logprobs[t]))
            if min(abs(r - 1 + low), abs(r - 1 - high)) < 1e-6 * r:
                on_the_bound.add(t)
        assert len(on_the_bound) <= 1
        assert metrics["m2_low"].item() == pytest.approx(low, rel=1e-5)
        assert metrics["m2_high"].item() == pytest.approx(high, rel=1e-5)
    for t in range(len(current)):
        if t not in reference.trained:
            assert gradient[t] == 0
        elif t not in on_the_bound:
            point[t] += STEP * 1j
            slope = reference.loss(point, current, entropy).imag / STEP
            point[t] = complex(current[t])
            assert gradient[t] == pytest.approx(slope, rel=2e-5, abs=1e-7), f"token {t}"


def test_the_ratio_of_gspo_by_token_is_at_most_e_to_the_ten() -> None:
    batch, _, entropy = make(seed=1, spread=0.1)
    batch = replace(batch, current=(batch.logprobs + np.float32(12)).astype(np.float32))
    keys = {"form": "token"}
    advantages, value, gradient, _ = found("gspo", keys, batch, batch.current, entropy)
    rows = np.unique(batch.row_of_token[batch.loss_mask])
    of_row = [advantages[batch.loss_mask & (batch.row_of_token == r)][0] for r in rows]
    worst = [-a * math.exp(10) if a < 0 else -a * (1 + 4e-4) for a in of_row]
    assert value == pytest.approx(sum(worst) / len(batch), rel=1e-5)
    assert not gradient.any()
