"""Intervals against formulas, tables and simulations that do not share their code."""

from __future__ import annotations

import math

import numpy as np
import pytest

from astraflow_contrib_eval.intervals import difference, proportion, quantile, ratio


@pytest.mark.parametrize(("correct", "count"), [(0, 10), (3, 10), (10, 10), (97, 100), (1, 2)])
def test_one_sample_a_prompt_has_the_interval_of_the_score_test(correct: int, count: int) -> None:
    """Its ends are where |p̂ - p| is z standard errors of p, found by bisection."""
    estimate = proportion([1.0] * correct + [0.0] * (count - correct), count)
    share, z = correct / count, 1.959963984540054

    def end(inside: float, outside: float) -> float:
        for _ in range(100):
            middle = (inside + outside) / 2
            near = abs(share - middle) <= z * math.sqrt(middle * (1 - middle) / count)
            inside, outside = (middle, outside) if near else (inside, middle)
        return inside

    assert estimate.low == pytest.approx(end(share, 0.0) if correct else 0.0, abs=1e-9)
    assert estimate.high == pytest.approx(end(share, 1.0) if correct < count else 1.0, abs=1e-9)


@pytest.mark.parametrize(
    ("freedom", "expected", "off"),
    [(3, 3.182446, 6e-3), (5, 2.570582, 1e-3), (10, 2.228139, 1e-4), (100, 1.983972, 1e-6)],
)
def test_quantiles_are_those_of_the_tables(freedom: int, expected: float, off: float) -> None:
    assert quantile(freedom) == pytest.approx(expected, abs=off)


@pytest.mark.parametrize("prompts", [10, 40, 200])
@pytest.mark.parametrize("samples", [1, 4, 16])
@pytest.mark.parametrize("shape", [(0.5, 0.5), (2, 2), (20, 1), (0.3, 3)])
def test_intervals_contain_the_true_value_as_often_as_they_claim(
    prompts: int, samples: int, shape: tuple[float, float]
) -> None:
    """Prompts are as hard as a beta distribution draws them, and all samples of a prompt share that."""
    random, rounds, held = np.random.default_rng(1), 300, 0
    truth = shape[0] / sum(shape)
    for _ in range(rounds):
        shares = random.binomial(samples, random.beta(*shape, prompts)) / samples
        estimate = proportion(shares.tolist(), prompts * samples)
        assert estimate.low is not None and estimate.high is not None
        held += estimate.low <= truth <= estimate.high
    assert held / rounds > 0.88


def test_samples_of_one_prompt_are_not_taken_for_prompts() -> None:
    """Twenty prompts, each of which is always or never solved, carry as much information with 16 samples as with
    one."""
    solved = [1.0] * 10 + [0.0] * 10
    once, often = proportion(solved, 20), proportion(solved, 320)
    assert once.low is not None and often.low is not None
    assert often.low == pytest.approx(once.low, abs=0.02)


@pytest.mark.parametrize("samples", [1, 8])
def test_intervals_of_differences_contain_the_true_difference(samples: int) -> None:
    """Of two models of which the second is 0.1 worse where it can be, on the same prompts."""
    random, rounds, held, apart = np.random.default_rng(2), 300, 0, 0
    truth = 0.1 - 0.1**2 / 2  # of uniform prompts, of which none falls below 0
    for _ in range(rounds):
        chance = random.uniform(size=100)
        first = random.binomial(samples, chance) / samples
        second = random.binomial(samples, np.maximum(chance - 0.1, 0)) / samples
        estimate = difference(list(zip(first.tolist(), second.tolist(), strict=True)), samples)
        assert estimate.low is not None and estimate.high is not None
        held += estimate.low <= truth <= estimate.high
        apart += estimate.low > 0
    assert held / rounds > 0.91
    assert apart / rounds > (0.3 if samples == 1 else 0.99)


def test_models_that_never_differ_are_not_proved_alike() -> None:
    estimate = difference([(1.0, 1.0)] * 20, 1)
    assert estimate.value == 0.0
    assert estimate.low is not None and estimate.low < -0.05
    assert difference([(1.0, 0.0)], 1).low is None


def test_mean_rewards_of_unequal_prompts_hold_the_truth() -> None:
    random, rounds, held = np.random.default_rng(3), 300, 0
    for _ in range(rounds):
        counts = random.integers(1, 5, 40)
        sums = [float(random.normal(random.normal(2), 1, n).sum()) for n in counts]
        estimate = ratio(sums, counts.tolist())
        assert estimate.low is not None and estimate.high is not None
        held += estimate.low <= 2 <= estimate.high
    assert held / rounds > 0.91
