from __future__ import annotations

from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from astraflow_core.errors import UserError
from astraflow_core.types import BufferedRow
from astraflow_plugin_replay.config import ReplayConfig
from astraflow_plugin_replay.policy import Replay
from astraflow_testing.conformance.subject import context

BOUND = 4  # of the run of the conformance context


def policy(seed=0, **keys):
    return Replay(ReplayConfig(**keys), context("dataflow", Path("."), seed))


def row(arrival, version=10, served=1, reward=0.0, size=4, mean=0.5, std=0.5):
    return BufferedRow(arrival, f"p{arrival}", version, 9, reward, size, mean, std, served)


def fresh_rows(count):
    return [row(1000 + n, served=0) for n in range(count)]


@given(
    st.integers(1, 40), st.integers(0, 99), st.integers(0, 40), st.integers(0, 40),
    st.sampled_from(["latest", "uniform", "prioritised"]),
)  # fmt: skip
def test_a_batch_has_its_share_of_rows_served_again(count, percent, fresh, kept, selector):
    made = policy(ratio=percent / 100, selector=selector).draw(
        count, fresh_rows(fresh), [row(n) for n in range(kept)], 10
    )
    again = min(int(Fraction(percent, 100) * count), kept)
    if fresh < count - again:
        assert made is None
        return
    arrivals = [r.arrival for r in made]
    assert arrivals[: count - again] == [1000 + n for n in range(count - again)]
    served = arrivals[count - again :]
    assert len(set(served)) == again
    assert served == sorted(served)
    if selector == "latest":
        assert served == list(range(kept - again, kept))


def serve(made, version, ages, kept=()):
    rows = [row(100 * version + n, version - age, served=0) for n, age in enumerate(ages)]
    made.draw(len(rows), rows, list(kept), version)


@pytest.mark.parametrize(
    ("keys", "ages", "named"),
    [
        ({}, [BOUND] * 4, "[run] max_staleness = 4"),
        ({"max_staleness": 1}, [1, 1, 1, 0], "its max_staleness = 1"),
        ({}, [BOUND, 0, 0, 0], None),
        ({"ratio": 0.0}, [BOUND] * 4, None),
    ],
)
def test_a_replay_without_effect_is_reported_once_with_the_key(caplog, keys, ages, named):
    made = policy(**keys)
    for version in range(20):
        serve(made, version + 10, ages)
    told = [record.message for record in caplog.records if "no effect" in record.message]
    assert len(told) == (named is not None)
    assert named is None or named in told[0]
    assert made.metrics()["missing"] == (0 if "ratio" in keys else 40)
    bound = keys.get("max_staleness", BOUND)
    assert made.metrics()["at_bound"] == sum(age >= bound for age in ages) / 4


def test_replay_that_works_now_and_then_is_left_alone(caplog):
    made = policy()
    for version in range(40):
        kept = [row(0, version)] if version % 7 == 6 else []
        serve(made, version, [BOUND] * 4, kept)
    assert not caplog.records


def test_the_product_is_exact():
    made = policy(ratio=0.29).draw(100, fresh_rows(100), [row(n) for n in range(50)], 10)
    assert sum(r.times_served for r in made) == 29  # int(100 * 0.29) is 28


@given(
    st.lists(st.tuples(st.integers(0, 10), st.integers(1, 5)), max_size=20),
    st.integers(0, BOUND), st.integers(1, 4), st.integers(1, 25),
)  # fmt: skip
def test_bounds_hold_whatever_lies_in_the_pool(rows, staleness, limit, pool):
    kept = [row(n, version, served) for n, (version, served) in enumerate(rows)]
    bounded = policy(ratio=0.9, max_staleness=staleness, reuse_limit=limit, pool_size=pool)
    made = bounded.draw(20, fresh_rows(20), kept, 10)
    again = [r for r in made if r.times_served]
    allowed = [
        r for r in kept[-pool:] if 10 - r.min_version <= staleness and r.times_served - 1 < limit
    ]
    assert [r.arrival for r in again] == [r.arrival for r in allowed[-min(18, len(allowed)) :]][
        : len(allowed)
    ]


def test_without_a_bound_of_its_own_the_runs_holds():
    kept = [row(0, 10 - BOUND - 1), row(1, 10 - BOUND)]
    made = policy(ratio=0.5).draw(4, fresh_rows(4), kept, 10)
    assert [r.arrival for r in made if r.times_served] == [1]


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
def test_priorities_decide_how_often_a_row_is_drawn(exponent):
    rewards = np.array([0.5, 0.6, 1.0, 2.0])
    drawing = policy(selector="prioritised", ratio=0.5, exponent=exponent)
    kept, seen = [row(n, reward=r) for n, r in enumerate(rewards)], Counter()
    for _ in range(3000):
        seen.update(r.arrival for r in drawing.draw(2, fresh_rows(1), kept, 10) if r.times_served)
    expected = (np.abs(rewards - 0.5) / (0.5 + 1e-5)) ** exponent
    np.testing.assert_allclose(
        [seen[n] / 3000 for n in range(4)], expected / expected.sum(), atol=0.03
    )
    assert seen[0] == 0


def test_uniform_draws_all_alike():
    drawing, seen = policy(selector="uniform", ratio=0.5), Counter()
    for _ in range(2000):
        made = drawing.draw(4, fresh_rows(2), [row(n, reward=n) for n in range(8)], 10)
        seen.update(r.arrival for r in made if r.times_served)
    np.testing.assert_allclose([seen[n] / 2000 for n in range(8)], 0.25, atol=0.04)
    assert drawing.metrics()["replayed"] == 0.5


def test_keys_are_checked():
    with pytest.raises(UserError, match="max_staleness = 5 is looser than the run's, 4"):
        policy(max_staleness=5)
    for wrong in ({"ratio": 1.0}, {"ratio": -0.1}, {"pool_size": 0}, {"reuse_limit": 0}):
        with pytest.raises(ValidationError):
            ReplayConfig(**wrong)
