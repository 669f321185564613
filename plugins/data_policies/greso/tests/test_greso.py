from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from astraflow_core.errors import UserError
from astraflow_core.types import GroupSummary, Prompt
from astraflow_plugin_greso.config import GresoConfig, GresoRepositoryConfig
from astraflow_plugin_greso.curator import Greso
from astraflow_plugin_greso.repository import GresoRepository
from astraflow_testing.conformance.subject import context

REWARDS = {
    "easy": [1.0, 1.0],
    "hard": [0.0, 0.0],
    "mixed": [0.0, 1.0],
    "alone": [1.0],
    "middle": [0.6, 0.6],
    "nearly": [0.99, 0.97],
}


def greso(seed=0, **keys):
    return Greso(GresoConfig(**keys), context("dataflow", Path("."), seed))


def repository(seed=0, **keys):
    return GresoRepository(GresoRepositoryConfig(**keys), context("dataflow", Path("."), seed))


def group(prompt, rewards, policy="solver"):
    n = len(rewards)
    whole = np.ones(n, dtype=np.int32)
    return GroupSummary(
        policy, Prompt(prompt), np.array(rewards, dtype=np.float64), whole, whole, whole,
        np.zeros(n, dtype=np.bool_), 1,
    )  # fmt: skip


def frequency(policy, prompt, offers=3000):
    return sum(policy.admit(Prompt(prompt)) for _ in range(offers)) / offers


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ([], 1.0),
        (["easy"], 0.5),
        (["easy", "easy"], 0.25),
        (["easy"] * 3, 0.125),
        (["easy"] * 7, 0.05),
        (["hard"], 0.5),
        (["hard"] * 2, 0.30),
        (["easy"] * 4 + ["hard"], 0.5),
        (["hard"] * 4 + ["easy"], 0.5),
        (["easy"] * 4 + ["mixed"], 1.0),
        (["easy", "alone", "easy"], 0.25),
        (["middle"] * 2, 0.25),
        (["nearly"] * 2, 1.0),
    ],
)
def test_the_curator_admits_by_its_typed_streak(history, expected):
    policy = greso()
    for outcome in history:
        policy.accept(group("p", REWARDS[outcome]))
    assert frequency(policy, "p") == pytest.approx(expected, abs=0.04)


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        (["easy"] * 2, 0.25),
        (["nearly"] * 2, 0.25),
        (["easy", "nearly", "easy"], 0.125),
        (["easy"] * 9, 0.01),
        (["hard"] * 2, 0.25),
        (["hard"] * 9, 0.01),
        (["middle"] * 2, 1.0),
        (["hard", "easy"], 0.5),
        (["hard"] * 3 + ["mixed"], 1.0),
    ],
)
def test_the_repository_admits_by_trailing_means(history, expected):
    policy = repository()
    for outcome in history:
        policy.accept(group("p", REWARDS[outcome]))
    assert frequency(policy, "p") == pytest.approx(expected, abs=0.04)


def simulated(outcomes, per_version, first, low, high, targets, count):
    """The controller over lists of outcomes, one list for each version; p after each."""
    p = np.array([first, first])
    for window in np.array_split(
        np.array(outcomes), np.arange(per_version, len(outcomes), per_version)
    ):
        shares = np.array([np.mean([o in kind for o in window]) for kind in count])
        p = np.clip(np.where(shares >= targets, p - 0.01, p + 0.01), low, high)
    return p


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from(["easy", "hard", "mixed", "middle"]), min_size=1, max_size=60),
    st.integers(1, 9),
    st.sampled_from([0.5, 0.02, 0.985]),
)
def test_the_curators_controller_is_that_of_a_simulation(outcomes, per_version, first):
    policy = greso(p_easy=first, p_hard=first)
    policy.on_version("solver", 0)
    policy.admit(Prompt("p"))
    policy.on_version("solver", 1)
    policy.admit(Prompt("p"))  # a whole epoch of one prompt
    for start in range(0, len(outcomes), per_version):
        for outcome in outcomes[start : start + per_version]:
            policy.accept(group("p", REWARDS[outcome]))
            policy.accept(group("p", REWARDS["mixed"], policy="another"))
        policy.on_version("another", 2)
        policy.on_version("solver", 2 + start)
    made = policy.metrics()
    expected = simulated(
        outcomes, per_version, first, 0.01, 0.99, [0.083, 0.167], [{"easy", "middle"}, {"hard"}]
    )
    np.testing.assert_allclose([made["p_easy"], made["p_hard"]], expected, atol=1e-12)


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from(["easy", "hard", "mixed", "nearly"]), min_size=1, max_size=60),
    st.integers(1, 9),
    st.sampled_from([0.5, 0.055, 0.94]),
)
def test_the_repositorys_controller_is_that_of_a_simulation(outcomes, per_version, first):
    policy = repository(p_easy=first, p_hard=first)
    policy.admit(Prompt("p"))
    policy.accept(group("p", REWARDS["easy"]))
    policy.on_version("solver", 1)  # still the first epoch
    assert policy.metrics()["p_easy"] == first
    policy.admit(Prompt("p"))
    for start in range(0, len(outcomes), per_version):
        for outcome in outcomes[start : start + per_version]:
            policy.accept(group("p", REWARDS[outcome]))
        policy.on_version("solver", 2 + start)
    made = policy.metrics()
    expected = simulated(
        outcomes, per_version, first, 0.05, 0.95, [1 / 12, 1 / 6], [{"easy"}, {"hard"}]
    )
    np.testing.assert_allclose([made["p_easy"], made["p_hard"]], expected, atol=1e-12)


def test_the_curators_controller_rests_for_an_epoch_after_the_first_version():
    policy = greso()
    policy.on_version("solver", 0)
    prompts = [Prompt(f"p{n}") for n in range(5)]

    def live(offers, version):
        for prompt in offers:
            policy.admit(prompt)
            policy.accept(group(prompt.id, REWARDS["mixed"]))
        policy.on_version("solver", version)
        return policy.metrics()["p_easy"]

    assert live(prompts, 1) == 0.5
    assert live(prompts[:4], 2) == 0.5
    assert policy.metrics()["armed"] == 0
    assert live(prompts[4:], 3) == pytest.approx(0.51)
    assert policy.metrics()["armed"] == 1
    policy.on_version("solver", 4)  # no group since: nothing moves
    assert policy.metrics()["p_easy"] == pytest.approx(0.51)


def sizes_of_rounds(full, needed, smallest, flat_of_round, group_size):
    """The repository's loop over the rounds of steps, written down once more."""
    sizes, kept, last, size = [], 0, False, full
    for flat_share in flat_of_round:
        sizes.append(size)
        flat = round(flat_share * size)
        kept += (size - flat) * group_size
        if kept < needed and not last:
            if flat == size:
                estimate = full + 1
            else:
                estimate = int((needed - kept) / (1 - flat / size) / group_size * 1.25)
            last = estimate <= full
            size = max(min(estimate, full), smallest)
        else:
            kept, last, size = 0, False, full
    return sizes


@settings(max_examples=40)
@given(
    st.integers(1, 20), st.integers(1, 120), st.integers(1, 10),
    st.lists(st.floats(0, 1), min_size=1, max_size=8), st.integers(0, 99),
)  # fmt: skip
def test_rounds_have_the_sizes_of_the_repository(full, needed, smallest, flat_shares, seed):
    policy = repository(sampling_batch=full, train_sequences=needed, smallest_batch=smallest)
    seen, order = [], np.random.default_rng(seed)
    for share in flat_shares:
        seen.append(int(policy.metrics()["round_size"]))
        prompts = [f"{len(seen)}-{n}" for n in range(seen[-1])]
        for prompt in prompts:
            assert not policy.hold()
            policy.on_admitted(Prompt(prompt))
        flat = round(share * len(prompts))
        for position, index in enumerate(order.permutation(len(prompts))):
            assert policy.hold()
            policy.accept(group(prompts[index], REWARDS["easy" if position < flat else "mixed"]))
            policy.on_ended(Prompt(prompts[index]), "accepted")
        assert not policy.hold()
    assert seen == sizes_of_rounds(full, needed, smallest, flat_shares, 2)


def test_tasks_without_a_group_end_a_round_too():
    policy = repository(sampling_batch=2, train_sequences=4, smallest_batch=1)
    for _ in range(3):
        policy.on_admitted(Prompt("p"))
        policy.on_admitted(Prompt("q"))
        assert policy.hold()
        policy.on_ended(Prompt("p"), "failed")
        policy.on_ended(Prompt("q"), "set_aside")
        assert not policy.hold()


def test_keys_are_checked():
    with pytest.raises(UserError, match="this run has solver"):
        greso(policy="critic")
    with pytest.raises(ValidationError, match="given together"):
        GresoRepositoryConfig(sampling_batch=64)
    with pytest.raises(ValidationError, match="below easy_mean"):
        GresoRepositoryConfig(hard_mean=0.98)
    for wrong in ({"p_easy": 0}, {"floor_hard": 1.2}, {"target_easy": -0.1}, {"lowest": 1}):
        with pytest.raises(ValidationError):
            GresoConfig(**wrong)


@pytest.mark.parametrize(
    ("rewards", "keys", "flat"),
    [
        ([0.1 + 0.2, 0.3], {}, True),
        ([1.0, 1.00001], {}, False),
        ([1.0, 1.00001], {"tolerance": 1e-4}, True),
        ([0.0, 1e-9], {"tolerance": 1e-5}, False),
        ([0.0, 1e-9], {"tolerance": 1e-5, "absolute_tolerance": 1e-8}, True),
    ],
)
def test_rewards_are_compared_as_by_dynamic_sampling(rewards, keys, flat):
    streak = greso(easy_above=0.3, **keys)
    streak.accept(group("a", rewards))
    assert (streak.why_refused(Prompt("a")) != "no streak") is flat
    step = repository(**keys)
    step.admit(Prompt("a"))
    step.admit(Prompt("a"))  # the second epoch
    step.accept(group("a", rewards))
    step.on_version("solver", 1)
    kinds = step.metrics()["ratio_easy"] + step.metrics()["ratio_hard"]
    assert kinds == (flat and not 0.11 < np.mean(rewards) < 0.98)


def test_a_nearly_flat_group_is_easy_by_its_mean():
    streak = greso(easy_above=0.5, tolerance=0.1)
    streak.accept(group("a", [0.49, 0.53, 0.53]))
    streak.accept(group("b", [0.51, 0.47, 0.47]))
    assert [streak.why_refused(Prompt(p)) for p in "ab"] == ["easy streak", "hard streak"]
