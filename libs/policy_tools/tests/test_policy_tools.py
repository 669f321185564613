from __future__ import annotations

import itertools
import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, ValidationError

from astraflow_core.errors import UserError
from astraflow_core.types import BufferedRow
from astraflow_policy_tools.chance import Chance
from astraflow_policy_tools.outcomes import watched_policy
from astraflow_policy_tools.prompt_table import PromptTable
from astraflow_policy_tools.schedule import Schedule, at, values
from astraflow_policy_tools.statistics import surprise, without_variance
from astraflow_testing.conformance.subject import context


class Keys(BaseModel):
    model_config = ConfigDict(frozen=True)
    value: Schedule


@given(
    st.dictionaries(st.integers(0, 50), st.floats(-10, 10), min_size=1),
    st.lists(st.integers(0, 60)),
)
def test_a_schedule_is_linear_between_its_points(points, versions):
    given = sorted(points.items())
    schedule = Keys(value=[list(point) for point in given]).value
    expected = np.interp(versions, [v for v, _ in given], [n for _, n in given])
    np.testing.assert_allclose([at(schedule, v) for v in versions], expected, atol=1e-9)
    assert values(schedule) == tuple(n for _, n in given)


def test_a_schedule_may_be_a_number_and_its_versions_ascend():
    assert at(Keys(value=3).value, 7) == 3
    assert values(2.0) == (2.0,)
    for wrong in ([[3, 1.0], [3, 2.0]], [], [[-1, 1.0]], float("nan"), "much"):
        with pytest.raises(ValidationError):
            Keys(value=wrong)


@given(st.lists(st.floats(0, 5), max_size=12), st.integers(0, 12), st.integers(0, 99))
def test_a_sample_has_different_indexes_and_prefers_any_weight_to_none(weights, count, seed):
    count = min(count, len(weights))
    drawn = Chance(seed).sample(weights, count)
    assert drawn == sorted(set(drawn))
    assert len(drawn) == count
    positive = sum(weight > 0 for weight in weights)
    assert sum(weights[index] > 0 for index in drawn) == min(count, positive)


def test_the_first_drawn_follow_their_weights():
    chance, weights, seen = Chance(1), [1.0, 2.0, 0.0, 5.0], Counter()
    for _ in range(4000):
        seen.update(chance.sample(weights, 1))
    observed = np.array([seen[i] for i in range(4)]) / 4000
    np.testing.assert_allclose(observed, np.array(weights) / 8, atol=0.03)


@pytest.mark.parametrize("highest", [5.0, 50.0, 0.0])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_pick_is_distributed_as_a_sample(count, highest):
    """Against the chances of all sequences of draws without replacement, summed up."""
    weights = [1.0, 2.0, 0.0, 5.0]
    expected: Counter[tuple[int, ...]] = Counter()
    for order in itertools.permutations([0, 1, 3], count):
        left, chance = 8.0, 1.0
        for index in order:
            chance *= weights[index] / left
            left -= weights[index]
        expected[tuple(sorted(order))] += chance
    chance, seen = Chance(3), Counter()
    for _ in range(3000):
        seen[tuple(chance.pick(4, count, weights.__getitem__, highest))] += 1
    for indexes, share in expected.items():
        assert seen[indexes] / 3000 == pytest.approx(share, abs=0.03)
    assert seen.keys() == expected.keys()


def test_a_pick_of_more_than_have_a_weight_takes_the_others_too():
    assert Chance(0).pick(4, 2, [0.0, 0.0, 1.0, 0.0].__getitem__, 1.0) == [2, 3]
    assert Chance(0).pick(3, 3, [0.0, 0.0, 0.0].__getitem__, 0.0) == [0, 1, 2]
    assert Chance(0).pick(0, 0, [].__getitem__, 1.0) == []


def test_of_weightless_indexes_the_last_are_drawn():
    assert Chance(0).sample([0.0, 0.0, 1.0, 0.0], 2) == [2, 3]


def test_chance_continues_from_its_state_and_spends_nothing_on_what_is_certain():
    one, other = Chance(5), Chance(9)
    one.happens(0.5)
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert one.happens(1.0)
    assert not one.happens(0.0)
    assert [one.happens(0.3) for _ in range(50)] == [other.happens(0.3) for _ in range(50)]


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(-9, 9))))
def test_a_table_is_a_dict_of_rows(writes):
    table, mirror = PromptTable(n="h", x="d"), {}
    for prompt, number in writes:
        row = table.row(prompt)
        table.column("n")[row] += number
        table.column("x")[row] = number / 2
        mirror[prompt] = (mirror.get(prompt, (0, 0))[0] + number, number / 2)
    heir = PromptTable(n="h", x="d")
    heir.row("other")
    heir.load_state_dict(json.loads(json.dumps(table.state_dict())))
    for each in (table, heir):
        rows = {p: each.find(p) for p in mirror}
        assert {p: (each.column("n")[r], each.column("x")[r]) for p, r in rows.items()} == mirror
        assert len(each) == len(mirror)
        assert each.find("nobody") is None
        assert "other" not in each


def test_a_table_refuses_the_state_of_another():
    table = PromptTable(n="h")
    with pytest.raises(ValueError, match="does not have the columns of"):
        table.load_state_dict({"ids": [], "columns": {"m": []}})
    with pytest.raises(ValueError, match="2 prompts"):
        table.load_state_dict({"ids": ["a", "b"], "columns": {"n": [1]}})


def test_statistics_of_rows_and_groups():
    rewards = np.array([0.0, 1.0, 1.0, 1.0])
    row = BufferedRow(0, "p", 0, 5, 0.0, 4, float(rewards.mean()), float(rewards.std(ddof=1)))
    assert surprise(row) == pytest.approx(0.75 / (0.5 + 1e-5))
    assert surprise(BufferedRow(0, "p", 0, 5, 3.0, 1, 3.0, 0.0)) == 0
    assert not without_variance(rewards)
    assert without_variance(np.ones(3))
    assert not without_variance(np.ones(1))
    assert not without_variance(np.ones(1), tolerance=0.1)
    assert without_variance(np.array([0.1 + 0.2, 0.3]))
    assert without_variance(np.array([-2.0, -2.1]), tolerance=0.1)
    assert not without_variance(np.array([-2.0, -2.1, 2.0]), tolerance=0.1)


def test_the_policy_whose_outcomes_count(tmp_path):
    assert watched_policy("mine", None, context("dataflow", tmp_path)) == "solver"
    with pytest.raises(UserError, match="'mine': policy = 'judge', but this run has solver"):
        watched_policy("mine", "judge", context("dataflow", tmp_path))
