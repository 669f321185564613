from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from astraflow_core.errors import PromptError, UserError
from astraflow_core.types import GroupSummary, Prompt
from astraflow_plugin_prompt_filters import config as keys_of
from astraflow_plugin_prompt_filters.curriculum import Curriculum
from astraflow_plugin_prompt_filters.mixing import Mixing
from astraflow_plugin_prompt_filters.quarantine import Quarantine
from astraflow_plugin_prompt_filters.solved import SolvedFilter
from astraflow_testing.conformance.subject import context

CONTEXT = context("dataflow", Path("."))


def solved_filter(**keys):
    return SolvedFilter(keys_of.SolvedFilterConfig(**keys), CONTEXT)


def curriculum(**keys):
    return Curriculum(keys_of.CurriculumConfig(**keys), CONTEXT)


def mixing(**keys):
    return Mixing(keys_of.MixingConfig(**keys), CONTEXT)


def quarantine(**keys):
    return Quarantine(keys_of.QuarantineConfig(**keys), CONTEXT)


def group(prompt, rewards, policy="solver"):
    n = len(rewards)
    whole = np.ones(n, dtype=np.int32)
    return GroupSummary(
        policy, Prompt(prompt), np.array(rewards, dtype=np.float64), whole, whole, whole,
        np.zeros(n, dtype=np.bool_), 1,
    )  # fmt: skip


@given(
    st.lists(
        st.lists(st.sampled_from([0.0, 1.0, -1.0, 0.2]), min_size=1, max_size=4),
        min_size=1,
        max_size=40,
    ),
    st.floats(0, 0.9),
    st.floats(0.1, 1.0),
)
def test_solved_prompts_are_those_of_a_moving_average(groups, memory, solved):
    policy = solved_filter(memory=memory, solved=solved)
    shares = np.array([np.mean(np.array(rewards) > 0) for rewards in groups])
    ages = np.arange(len(groups))[::-1]
    rate = float(np.sum((1 - memory) * memory**ages * shares))
    for rewards in groups:
        policy.accept(group("p", rewards))
        policy.accept(group("p", [9.0], policy="critic"))
    if abs(rate - solved) > 1e-9:
        assert policy.admit(Prompt("p")) is (rate < solved)
    assert policy.admit(Prompt("unseen"))


def test_a_solved_prompt_takes_29_groups_and_returns_by_chance_only():
    """0.9^28 > 0.05 > 0.9^29."""
    policy, curious = solved_filter(), solved_filter(revisit=0.25)
    for count in range(1, 30):
        assert policy.admit(Prompt("p"))
        for each in (policy, curious):
            each.accept(group("p", [1.0, 1.0]))
        assert policy.metrics()["solved"] == (count == 29)
    assert not any(policy.admit(Prompt("p")) for _ in range(50))
    visits = sum(curious.admit(Prompt("p")) for _ in range(2000))
    assert visits / 2000 == pytest.approx(0.25, abs=0.04)


@given(st.integers(0, 30), st.lists(st.floats(0, 10), min_size=1, max_size=20), st.floats(0, 5))
def test_the_curriculum_widens_with_the_version(version, difficulties, width):
    policy = curriculum(
        by="field", field="d", low=[[0, 0.0], [20, 5.0]], high=[[10, width], [20, 10.0]], explore=0
    )
    policy.on_version("solver", version)
    policy.on_version("critic", 99)
    low = np.interp(version, [0, 20], [0, 5])
    high = np.interp(version, [10, 20], [width, 10])
    for n, difficulty in enumerate(difficulties):
        if min(abs(difficulty - low), abs(difficulty - high)) > 1e-9:
            assert policy.admit(Prompt(str(n), {"d": difficulty})) is bool(low < difficulty < high)


def test_failure_rates_are_learned_and_the_unknown_is_tried():
    policy = curriculum(low=0.3, high=0.8, explore=0, memory=0.5)
    assert policy.admit(Prompt("new"))
    policy.accept(group("p", [1.0, 0.5]))  # fails 0.25 of the time
    assert not policy.admit(Prompt("p"))
    policy.accept(group("p", [0.0]))  # 0.5 * 0.75 is left
    assert policy.admit(Prompt("p"))
    for _ in range(3):
        policy.accept(group("p", [0.0]))
    assert not policy.admit(Prompt("p"))


def test_length_counts_the_characters_of_a_text_or_of_messages():
    policy = curriculum(by="length", low=3, high=5, explore=0)
    messages = [{"role": "system", "content": "ab"}, {"role": "user", "content": "cd"}]
    offers = [Prompt("a", {"prompt": "ab"}), Prompt("b", {"prompt": "abc"})]
    offers += [Prompt("c", {"prompt": messages}), Prompt("d", {"prompt": "abcdef"})]
    assert [policy.admit(prompt) for prompt in offers] == [False, True, True, False]


def test_what_lies_outside_is_explored_by_chance():
    policy = curriculum(by="field", high=1, explore=0.2)
    found = sum(policy.admit(Prompt("p", {"difficulty": 2})) for _ in range(3000))
    assert found / 3000 == pytest.approx(0.2, abs=0.03)
    assert policy.metrics()["explored"] == found


# The bounds are some four standard deviations of what is drawn, so the examples are the same each time.
@settings(max_examples=30)
@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(1, 9), min_size=1),
    st.dictionaries(st.sampled_from("abcd"), st.floats(0.2, 5)),
    st.integers(0, 99),
)
def test_the_mixture_has_the_weights_whatever_the_data_has(amounts, weights, seed):
    weights = {source: weights.get(source, 1.0) for source in "abcd"}
    policy = mixing(weights=weights)
    data = [source for source, amount in amounts.items() for _ in range(amount)]
    drawn = np.random.default_rng(seed).choice(data, size=3000)
    admitted = Counter(s for s in drawn if policy.admit(Prompt("p", {"source": str(s)})))
    total = sum(weights[source] for source in amounts)
    for source in amounts:
        share = admitted[source] / admitted.total()
        assert share == pytest.approx(weights[source] / total, rel=0.12, abs=0.02)
    rarest = max(amounts, key=lambda s: weights[s] / np.sum(drawn == s) if s in drawn else 0)
    assert admitted[rarest] >= 0.85 * np.sum(drawn == rarest)  # as little is wasted as possible


def test_weights_change_with_the_version():
    policy = mixing(weights={"a": [[0, 1], [10, 0]], "b": 1})
    prompts = [Prompt("1", {"source": "a"}), Prompt("2", {"source": "b"})]

    def share_of_a():
        taken = [p.data["source"] for p in prompts * 300 if policy.admit(p)]
        return taken.count("a") / len(taken)

    assert share_of_a() == pytest.approx(0.5, abs=0.02)
    policy.on_version("solver", 5)
    assert share_of_a() == pytest.approx(1 / 3, abs=0.02)
    policy.on_version("solver", 10)
    assert share_of_a() == pytest.approx(0, abs=0.01)


@given(
    st.lists(st.sampled_from(["failed", "set_aside", "accepted", "rejected"]), max_size=12),
    st.integers(1, 3),
    st.integers(1, 3),
)
def test_rests_double_with_each_failure(outcomes, after, rest):
    policy = quarantine(after=after, rest=rest, longest=10)
    in_a_row = 0
    for outcome in outcomes:
        skipped = 0
        while not policy.admit(Prompt("p")):
            skipped += 1
        expected = 0 if in_a_row < after else min(rest * 2 ** (in_a_row - after), 10)
        assert skipped == expected
        policy.on_admitted(Prompt("p"))
        policy.on_ended(Prompt("p"), outcome)
        in_a_row = in_a_row + 1 if outcome in ("failed", "set_aside") else 0
    assert policy.admit(Prompt("other"))


def test_what_is_wrong_is_named():
    with pytest.raises(
        PromptError, match="prompt 'p' needs a number as 'difficulty', it has 'hard'"
    ):
        curriculum(by="field").admit(Prompt("p", {"difficulty": "hard"}))
    with pytest.raises(PromptError, match="source = 'cde'; weights has code, math"):
        mixing(weights={"code": 1, "math": 1}).admit(Prompt("p", {"source": "cde"}))
    with pytest.raises(UserError, match="'curriculum': policy = 'critic'"):
        curriculum(policy="critic")
    for wrong, match in [
        ({"weights": {}}, "weights"),
        ({"weights": {"a": -1}}, "negative"),
        ({"weights": {"a": [[0, 1], [5, 0]]}}, "positive at every version"),
    ]:
        with pytest.raises(ValidationError, match=match):
            keys_of.MixingConfig(**wrong)
    with pytest.raises(ValidationError, match="nothing would be admitted"):
        keys_of.CurriculumConfig(low=2.0, high=1.0)
    with pytest.raises(ValidationError, match="exceed longest"):
        keys_of.QuarantineConfig(rest=9, longest=8)
    with pytest.raises(ValidationError):
        keys_of.SolvedFilterConfig(revisit=1.5)
