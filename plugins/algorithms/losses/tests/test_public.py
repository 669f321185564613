"""Advantages, losses and gradients of components against the public implementation that each names."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow_core.catalog import Catalog
from astraflow_core.types import Batch, ComponentContext, LossInputs, RunInfo, units_of

P = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("public.py"))))
GOLDEN = Path(__file__).with_name("public.json")
STEP = 1e-30
VERL = {"std_eps": 1e-6, "alone": "reward", "log_ratio_clamp": 20.0, "dual_clip": 3.0}
RECOMPUTE = {"proximal": "recompute"}
SIZES = (4, 3, 1, 2)


@dataclass(frozen=True)
class Data:
    """A batch and the same padded to ``[B, T]``; ``lp`` are the log-probs of the current policy."""

    batch: Batch
    current: Any
    mask: Any
    old: Any
    lp: Any
    prox: Any
    ref: Any
    values: Any
    versions: Any
    columns: Any

    @property
    def rewards(self) -> Any:
        return self.batch.rewards.astype(float)

    @property
    def index(self) -> Any:
        return self.batch.group

    def last(self, kl: Any = 0.0) -> Any:
        """Rewards of tokens: the outcome at the last trained one, less ``kl`` at each."""
        result = -kl * self.mask
        for row, trained in enumerate(self.mask):
            if trained.any():
                result[row, np.flatnonzero(trained)[-1]] += self.rewards[row]
        return result


def make(seed: int, spread: float, sizes: tuple[int, ...] = SIZES, longest: int = 10) -> Data:
    """Groups (the second has equal rewards); holes in the masks; the second row trains nothing."""
    rng = np.random.default_rng(seed)
    rows = sum(sizes)
    group = np.repeat(np.arange(len(sizes)), sizes)
    lengths = rng.integers(3, longest, rows).astype(np.int32)
    starts, total = np.cumsum(lengths) - lengths, int(lengths.sum())
    mask = rng.random(total) < 0.65
    mask[starts + 1], mask[starts] = True, False
    if rows > 2:
        mask[starts[1] : starts[1] + lengths[1]] = False
    rewards = rng.random(rows)
    rewards[group == 1] = 0.25
    rewards = rewards.astype(np.float32)
    of = [rewards[group == g].astype(float) for g in range(len(sizes))]
    behaviour = (-4 * rng.random(total)).astype(np.float32)

    def near(share: float = 1.0) -> Any:
        return (behaviour + share * spread * rng.uniform(-1, 1, total)).astype(np.float32)

    trained = np.add.reduceat(mask, starts)
    trajectory = np.arange(rows) + 70
    batch = Batch(
        id="b", policy="p", version=6, lengths=lengths, tokens=np.zeros(total, np.int32),
        loss_mask=mask, logprobs=behaviour, rewards=rewards, group=group.astype(np.int64),
        versions=np.where(mask, rng.integers(2, 7, total), -1).astype(np.int32),
        trajectory=trajectory, group_size=np.array(sizes, np.int32)[group],
        group_mean=np.array([x.mean() for x in of], np.float32)[group],
        group_std=np.array([x.std(ddof=1) if len(x) > 1 else 0 for x in of], np.float32)[group],
        units=units_of(group, trajectory, rewards, trained),
        reference=near(), proximal=near(0.6), current=near(), values=rng.normal(size=total).astype(np.float32),
    )  # fmt: skip
    row, place = batch.row_of_token, np.arange(total) - np.repeat(starts, lengths)

    def padded(values: Any) -> Any:
        result = np.zeros((rows, int(lengths.max())))
        result[row, place] = np.where(mask, values, 0.0)
        return result

    names = ("logprobs", "current", "proximal", "reference", "values", "versions")
    old, lp, prox, ref, values, versions = (padded(getattr(batch, name)) for name in names)
    ones = padded(mask * 1.0)
    return Data(batch, batch.current, ones, old, lp, prox, ref, values, versions, (row, place))


Advantages = Callable[[Data], Any]
Public = Callable[[Data, Any, Any], Any]
GRPO: Advantages = lambda d: P.verl_outcome("grpo", d.rewards, d.mask, d.index)  # noqa: E731
AREAL: Advantages = (  # noqa: E731
    lambda d: P.trl_advantages(d.rewards, d.index, True)[:, None] * d.mask
)


def trl(loss_type: str, **keys: Any) -> Public:
    return lambda d, lp, a: P.trl_loss(lp, d.old, a, d.mask, loss_type, **keys)


def trl_corrected(mode: str) -> Public:
    def loss(d: Data, lp: Any, a: Any) -> Any:
        factor = P.trl_correction(d.prox, d.old, d.mask, mode, 1.2)
        return P.trl_loss(lp, d.prox, a, d.mask, "dapo", factor=factor)

    return loss


def trl_beside(mode: str) -> dict[str, Any]:
    level, kind = mode.split("_")
    return RECOMPUTE | {"corrections": [{"mode": kind, "level": level, "high": 1.2}]}


def filtered(*how: Any) -> Public:
    return lambda d, lp, a: P.areal_loss(lp, d.prox, d.old, a, d.mask, 0.2, how)


def m2_mask(d: Data, lp: Any, a: Any) -> Any:
    kept = P.areal_m2_mask(d.prox, d.old, d.mask, 0.3)
    return P.areal_loss(lp, d.prox, d.prox, a, kept, 0.2)


def loglinear(d: Data, lp: Any, a: Any) -> Any:
    prox = P.areal_loglinear(lp, d.old, d.versions, d.batch.version)
    return P.areal_loss(lp, prox, d.old, a, d.mask, 0.2, ("mask", "token", 5.0))


def clip_range(find: Any, threshold: float) -> Public:
    def loss(d: Data, lp: Any, a: Any) -> Any:
        low, high = find(lp, d.old, a, d.mask, threshold)
        ratio = np.exp(lp - d.old)
        losses = P.maximum(-a * ratio, -a * P.clamp(ratio, 1 - low, 1 + high))
        return P.verl_agg(losses, d.mask, "token-mean")

    return loss


def with_kl(kind: str) -> Public:
    def loss(d: Data, lp: Any, a: Any) -> Any:
        kl = P.verl_agg(P.verl_kl(lp, d.ref, kind), d.mask, "token-mean")
        return P.verl_vanilla(lp, d.old, a, d.mask, 0.2, 0.2) + 0.3 * kl

    return loss


def off_policy(d: Data, lp: Any, a: Any) -> Any:
    factor = P.trl_off_policy_mask(lp, d.old, a, d.mask, 0.05)
    return P.trl_loss(lp, d.old, a, d.mask, "dapo", factor=factor)


VANILLA: Public = lambda d, lp, a: P.verl_vanilla(lp, d.old, a, d.mask, 0.2, 0.2)  # noqa: E731
CASES: dict[str, tuple[str, dict[str, Any], Advantages | None, Public]] = {
    "verl grpo": ("grpo", VERL, GRPO, VANILLA),
    "verl rloo": ("rloo", {}, lambda d: P.verl_outcome("rloo", d.rewards, d.mask, d.index), VANILLA),
    "verl opo": ("opo", {}, lambda d: P.verl_outcome("opo", d.rewards, d.mask, d.index), VANILLA),
    "verl rf++": (
        "reinforce_pp", {"gamma": 0.9, "kl_coef": 0.1},
        lambda d: P.verl_reinforce_pp(d.last(0.1 * (d.old - d.ref)), d.mask, 0.9, False), VANILLA,
    ),
    "verl rf++ reset": (
        "reinforce_pp", {"gamma": 0.9, "holes": "reset", "kl_coef": 0.1},
        lambda d: P.verl_reinforce_pp(d.last(0.1 * (d.old - d.ref)), d.mask, 0.9, True), VANILLA,
    ),
    "verl rf++ baseline": (
        "reinforce_pp", {"baseline": "group"},
        lambda d: P.verl_outcome("reinforce_pp_baseline", d.rewards, d.mask, d.index), VANILLA,
    ),
    "verl gspo": (
        "gspo", {"form": "token", "aggregation": "seq_mean_token_mean", "clip_low": 0.1, "clip_high": 0.1,
                 "std_eps": 1e-6, "alone": "reward"},
        GRPO, lambda d, lp, a: P.verl_gspo(lp, d.old, a, d.mask, 0.1, 0.1),
    ),
    "verl sapo": (
        "sapo", {"std_eps": 1e-6, "alone": "reward"}, GRPO,
        lambda d, lp, a: P.verl_sapo(lp, d.old, a, d.mask, "seq-mean-token-mean"),
    ),
    "verl cispo": (
        "cispo", {"clip_low": 0.2, "clip_high": 0.2, "log_ratio_clamp": 20.0}, None,
        lambda d, lp, a: P.verl_cispo(lp, d.old, a, d.mask, 0.2, 0.2),
    ),
    **{
        f"verl {kind} in the loss": (
            "grpo", VERL | {"kl_coef": 0.3, "kl_estimator": kind.replace("+", "_plus"), "kl_clamp": "verl"},
            GRPO, with_kl(kind),
        )
        for kind in ("k1", "k2", "k3", "k1+", "k3+")
    },
    "AReaL, token mask": ("decoupled_ppo", {}, None, filtered("mask", "token", 5.0)),
    "AReaL, token clamp": (
        "decoupled_ppo", {"corrections": [{"mode": "truncate", "high": 1.2}]}, None,
        filtered("clamp", "token", 1.2),
    ),
    "AReaL, sequence mask": (
        "decoupled_ppo", {"corrections": [{"mode": "mask", "level": "geometric", "high": 1.05}]}, None,
        filtered("mask", "sequence", 1.05),
    ),
    "AReaL, sequence clamp": (
        "decoupled_ppo", {"corrections": [{"mode": "truncate", "level": "geometric", "high": 1.05}]}, None,
        filtered("clamp", "sequence", 1.05),
    ),
    "AReaL, loglinear": ("decoupled_ppo", {"proximal": "loglinear"}, None, loglinear),
    "AReaL m2": ("m2po", RECOMPUTE | {"variant": "mask_areal", "threshold": 0.3}, None, m2_mask),
    "AReaL m2, micro-batch": (
        "m2po", RECOMPUTE | {"variant": "mask_areal", "threshold": 0.3, "scope": "micro_batch"}, None,
        m2_mask,
    ),
    "AstraFlow m2po": ("m2po", {"threshold": 0.1}, None, clip_range(P.astraflow_clip_range, 0.1)),
    "AstraFlow m2po, micro-batch": (
        "m2po", {"scope": "micro_batch"}, None, clip_range(P.astraflow_clip_range, 0.01)
    ),
    "AstraFlow sapo": (
        "sapo", {"aggregation": "token_mean"}, None,
        lambda d, lp, a: P.verl_sapo(lp, d.old, a, d.mask, "token-mean"),
    ),
    "AstraFlow gspo": (
        "gspo", {"aggregation": "token_mean", "clip_low": 0.1, "clip_high": 0.1}, None,
        lambda d, lp, a: P.astraflow_gspo(lp, d.old, a, d.mask, 0.1, 0.1),
    ),
    "M2PO": (
        "m2po", {"variant": "clip_range_m2po_repo", "threshold": 0.3}, None, clip_range(P.m2po_clip_range, 0.3)
    ),
    "M2PO, micro-batch": (
        "m2po", {"variant": "clip_range_m2po_repo", "threshold": 0.3, "scope": "micro_batch"}, None,
        clip_range(P.m2po_clip_range, 0.3),
    ),
    "TRL dapo": ("grpo", {"clip_high": 0.28}, AREAL, trl("dapo", high=0.28)),
    "TRL grpo": (
        "grpo", {"aggregation": "seq_mean_token_mean_all_rows", "kl_coef": 0.04}, AREAL,
        lambda d, lp, a: P.trl_loss(lp, d.old, a, d.mask, "grpo", ref=d.ref, beta=0.04),
    ),
    "TRL dr_grpo": (
        "dr_grpo", {"max_tokens": 9},
        lambda d: P.trl_advantages(d.rewards, d.index, False)[:, None] * d.mask, trl("dr_grpo", longest=9),
    ),
    "TRL gspo": (
        "gspo", {"clip_low": 0.1, "clip_high": 0.1}, AREAL, trl("grpo", low=0.1, high=0.1, level="sequence")
    ),
    "TRL cispo": ("cispo", {}, AREAL, trl("cispo", high=5.0)),
    "TRL off-policy mask": ("grpo", {"off_policy_delta": 0.05}, AREAL, off_policy),
    **{
        f"TRL {mode}": ("grpo", trl_beside(mode), AREAL, trl_corrected(mode))
        for mode in ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
    },
}  # fmt: skip


def build(name: str, keys: dict[str, Any]) -> Any:
    selected, config = Catalog.discover().validate_options("algorithm", name, keys, "test")
    run = RunInfo("test", 0, 1, 0, ("p",), Path("."))
    return selected.build(
        config, ComponentContext(run=run, role="trainer", policy="p", seed=0, directory=Path("."))
    )


def completed(algorithm: Any, batch: Batch) -> Batch:
    optional = ("reference", "proximal", "current", "values")
    batch = replace(batch, **{n: None for n in optional if n not in algorithm.needs})
    batch = replace(batch, advantages=algorithm.advantages(batch))
    return replace(batch, weights=algorithm.weights(batch))


def loss_of(algorithm: Any, batch: Batch, current: Any, dtype: Any = torch.float64) -> Any:
    """Terms, value, gradient to the log-probs and metrics, everything in ``dtype``."""

    def tensor(values: Any) -> Any:
        return None if values is None else torch.tensor(np.asarray(values), dtype=dtype)

    leaf = tensor(current).requires_grad_()
    critic = None if batch.values is None else tensor(batch.values + 0.7).requires_grad_()
    loss = algorithm.loss(
        LossInputs(
            logprobs=leaf, behaviour=tensor(batch.logprobs), advantages=tensor(batch.advantages),
            mask=torch.tensor(batch.loss_mask), row=torch.tensor(batch.row_of_token),
            rows=len(batch), weights={n: tensor(w) for n, w in batch.weights.items()}, step=0,
            entropy=torch.ones_like(leaf), proximal=tensor(batch.proximal), values=tensor(batch.values),
            reference=tensor(batch.reference), current=tensor(batch.current), predicted_values=critic,
        )
    )  # fmt: skip
    value = sum(coefficient * term for coefficient, term in loss.terms.values())
    value.backward()
    return loss, value.item(), leaf.grad.numpy(), critic


def compare(case: str, data: Data) -> None:
    name, keys, advantages, public = CASES[case]
    algorithm = build(name, keys)
    batch = completed(algorithm, data.batch)
    row, place = data.columns
    assert batch.advantages is not None
    if advantages is not None:
        np.testing.assert_allclose(
            batch.advantages, advantages(data)[row, place], rtol=1e-4, atol=1e-4
        )
    given = np.zeros_like(data.mask)
    given[row, place] = batch.advantages
    _, value, gradient, _ = loss_of(algorithm, batch, data.current)
    expected = public(data, data.lp.astype(complex), given)
    assert value == pytest.approx(expected.real, rel=1e-5, abs=1e-6)
    for token in np.flatnonzero(batch.loss_mask):
        lp = data.lp.astype(complex)
        lp[row[token], place[token]] += STEP * 1j
        slope = public(data, lp, given).imag / STEP
        if name == "m2po" and gradient[token] != pytest.approx(slope, rel=2e-5, abs=1e-7):
            # The token that gives the bound stands on it, so that rounding decides on its gradient.
            find = P.m2po_clip_range if "repo" in str(keys) else P.astraflow_clip_range
            bounds = find(data.lp, data.old, given, data.mask, keys.get("threshold", 0.01))
            r = np.exp(data.lp - data.old)[row[token], place[token]]
            assert min(abs(r - 1 + bounds[0]), abs(r - 1 - bounds[1])) < 1e-5 * r
            continue
        assert gradient[token] == pytest.approx(slope, rel=2e-5, abs=1e-7), f"token {token}"
    assert not gradient[~batch.loss_mask].any()


@pytest.mark.parametrize("spread", [0.05, 0.6, 25.0])
@pytest.mark.parametrize("case", CASES)
def test_a_component_is_what_its_source_computes(case: str, spread: float) -> None:
    compare(case, make(int(spread * 10), spread))


def golden() -> dict[str, Any]:
    """Value and slopes of each source, at one batch: `python test_public.py` writes them."""
    data = make(11, 0.6)
    row, place = data.columns
    kept: dict[str, Any] = {}
    for case, (name, keys, _, public) in CASES.items():
        advantages = completed(build(name, keys), data.batch).advantages
        given = np.zeros_like(data.mask)
        given[row, place] = np.round(advantages, 4)
        slopes = []
        for token in np.flatnonzero(data.batch.loss_mask):
            lp = data.lp.astype(complex)
            lp[row[token], place[token]] += STEP * 1j
            slopes.append(round(float(public(data, lp, given).imag / STEP), 9))
        value = public(data, data.lp.astype(complex), given).real
        kept[case] = {"value": round(float(value), 9), "slopes": slopes}
    return kept


def test_golden_values_are_kept() -> None:
    kept = json.loads(GOLDEN.read_text(encoding="utf-8"))
    data = make(11, 0.6)
    assert kept.keys() == CASES.keys()
    for case, expected in kept.items():
        name, keys, _, _ = CASES[case]
        algorithm = build(name, keys)
        batch = completed(algorithm, data.batch)
        assert batch.advantages is not None
        batch = replace(batch, advantages=np.round(batch.advantages, 4))
        _, value, gradient, _ = loss_of(algorithm, batch, data.current)
        assert value == pytest.approx(expected["value"], rel=1e-5, abs=1e-6), case
        apart = ~np.isclose(gradient[batch.loss_mask], expected["slopes"], rtol=2e-5, atol=1e-7)
        assert apart.sum() <= (name == "m2po"), case  # the token on the bound


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    sizes=st.lists(st.integers(1, 4), min_size=2, max_size=4).map(tuple),
    longest=st.integers(4, 12),
    spread=st.sampled_from([0.1, 2.0, 25.0]),
)
def test_also_on_ragged_batches(
    seed: int, sizes: tuple[int, ...], longest: int, spread: float
) -> None:
    data = make(seed, spread, sizes, longest)
    for case in ("verl rloo", "TRL gspo", "AReaL, sequence mask", "AstraFlow m2po", "M2PO"):
        compare(case, data)


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


def turns(seed: int, each: bool) -> Data:
    """Eight rows: trajectories of 3, 2, 1 and 2 turns, two to a group; ``each``: a reward per turn. The
    rows of a trajectory follow each other, and each trains one run of tokens."""
    data = make(seed, 0.3, sizes=(5, 3))
    batch = data.batch
    trajectory = np.repeat([9, 4, 7, 5], [3, 2, 1, 2])
    rng = np.random.default_rng(seed)
    rewards = rng.random(8) if each else rng.random(4)[np.repeat(np.arange(4), [3, 2, 1, 2])]
    mask = np.zeros_like(batch.loss_mask)
    for start, end in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
        mask[start + 1 : end] = True
    trained = np.add.reduceat(mask, batch.offsets[:-1])
    batch = replace(
        batch, loss_mask=mask, trajectory=trajectory, rewards=rewards.astype(np.float32),
        versions=np.where(mask, 3, -1).astype(np.int32),
        units=units_of(batch.group, trajectory, rewards.astype(np.float32), trained),
    )  # fmt: skip
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
    algorithm = build("ppo", keys | {"turn_rewards": "each" if each else "last"})
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


def test_a_trajectory_counts_once_in_its_group() -> None:
    batch = turns(6, each=False).batch
    found = build("grpo", {"group_unit": "trajectory", "std_eps": 1e-5}).advantages(batch)
    expected = P.claw_grpo(batch.rewards, batch.trajectory, batch.group, 1e-5)
    for row, (start, end) in enumerate(zip(batch.offsets[:-1], batch.offsets[1:], strict=True)):
        np.testing.assert_allclose(found[start + 1 : end], expected[row], rtol=1e-4, atol=1e-5)
    alone = build("rloo", {"group_unit": "trajectory"}).advantages(batch.take(np.array([0, 7])))
    of = {t: batch.rewards[batch.trajectory == t][0] for t in (9, 4, 7, 5)}
    for start, pair in ((1, (9, 4)), (int(batch.lengths[0]) + 1, (5, 7))):
        assert alone[start] == pytest.approx(of[pair[0]] - of[pair[1]], rel=1e-4)


if __name__ == "__main__":
    lines = [f"{json.dumps(case)}: {json.dumps(value)}" for case, value in golden().items()]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
