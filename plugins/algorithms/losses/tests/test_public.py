"""Advantages, losses and gradients of components against the public implementation that each names."""

from __future__ import annotations

import json
import runpy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

C = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("public_cases.py"))))
P, CASES = C.P, C.CASES
build, completed, loss_of, make = C.build, C.completed, C.loss_of, C.make
GOLDEN = Path(__file__).with_name("public.json")
STEP = 1e-30


def compare(case: str, data: Any) -> None:
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


def test_each_bound_keeps_some_and_leaves_out_others() -> None:
    left_out = {
        "dppo": "clip_fraction",
        "prime_rl": "clip_fraction",
        "flash_reinforce": "dropped_fraction",
        "grpo": "masked_fraction",
    }
    data = make(6, 0.6)
    for case, (name, keys, _, _) in CASES.items():
        if name in left_out and (name != "grpo" or "'reject'" in str(keys)):
            algorithm = build(name, keys)
            loss = loss_of(algorithm, completed(algorithm, data.batch), data.current)[0]
            assert 0.05 < loss.metrics[left_out[name]].item() < 0.95, case


@pytest.mark.parametrize("case", ["AReaL m2", "AReaL m2, micro-batch"])
@pytest.mark.parametrize("seed", [9, 13, 30])
def test_of_equal_moments_as_many_leave_as_in_the_source(case: str, seed: int) -> None:
    data = make(seed, 2.0, (8, 8, 8), 40, bfloat16=True)
    gaps = np.abs(data.prox - data.old)[data.mask > 0]
    kept = P.areal_m2_mask(data.prox, data.old, data.mask, 0.3)[data.mask > 0] > 0
    assert gaps[~kept].min() == gaps[kept].max(), "the threshold does not fall between equal ones"
    compare(case, data)


WHITENED = {"whiten": "token", "normalize_std": False}
OUTSIDE = {"whiten_eps_inside": False}


@pytest.mark.parametrize("scale", [1.0, 1e-4])
@pytest.mark.parametrize("source", ["verl", "AReaL", "TRL"])
def test_whitening_is_that_of_each_source_where_its_epsilon_shows(
    source: str, scale: float
) -> None:
    data = make(7, 0.6)
    small = {
        name: (getattr(data.batch, name) * scale).astype(np.float32)
        for name in ("rewards", "group_mean", "group_std")
    }
    data = replace(data, batch=replace(data.batch, **small))
    row, place = data.columns
    expected = np.zeros_like(data.mask)
    if source == "TRL":
        trained = data.mask.sum(1) > 0  # a row without a trained token has no weight here
        keys = {"whiten": "row", "whiten_eps": 1e-4, **OUTSIDE}
        found = build("rloo", keys).advantages(data.batch)
        plain = P.verl_outcome("rloo", data.rewards, np.ones_like(data.mask), data.index)[:, 0]
        expected[trained] = P.trl_normalize(plain[trained])[:, None]
    else:
        keys = {} if source == "verl" else {"whiten_eps": 1e-5, **OUTSIDE}
        found = build("grpo", WHITENED | keys).advantages(data.batch)
        whiten = P.verl_whiten if source == "verl" else P.areal_normalize
        plain = P.trl_advantages(data.rewards, data.index, False)[:, None] * data.mask
        expected = whiten(plain, data.mask)
    at = data.batch.loss_mask
    np.testing.assert_allclose(found[at], expected[row, place][at], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("keys", [{}, {"whiten_eps": 1e-5, "whiten_eps_inside": False}])
@pytest.mark.parametrize("use", ["ppo", "reinforce_pp"])
def test_returns_are_whitened_with_either_epsilon(use: str, keys: dict[str, Any]) -> None:
    data = make(3, 0.3)
    data = replace(data, batch=replace(data.batch, rewards=data.batch.rewards * np.float32(1e-4)))
    values = data.values * 1e-4
    batch = replace(data.batch, values=data.batch.values * np.float32(1e-4))
    row, place = data.columns
    found = build(use, {"gamma": 0.9, "log_ratio_clamp": "none", **keys}).advantages(batch)
    if use == "ppo":
        plain = P.verl_gae(data.last(), values, data.mask, 0.9, 1.0)[1] - values
    else:
        plain = np.zeros_like(data.mask)
        for t in reversed(range(data.mask.shape[1])):
            after = plain[:, t + 1] if t + 1 < data.mask.shape[1] else 0.0
            here = data.mask[:, t] > 0
            plain[:, t] = np.where(here, data.last()[:, t] + 0.9 * after, after)
    whiten = P.areal_normalize if keys else P.verl_whiten
    expected = whiten(plain, data.mask)
    at = batch.loss_mask
    np.testing.assert_allclose(found[at], expected[row, place][at], rtol=1e-3, atol=1e-4)


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


if __name__ == "__main__":
    lines = [f"{json.dumps(case)}: {json.dumps(value)}" for case, value in golden().items()]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
