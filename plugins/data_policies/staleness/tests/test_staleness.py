from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from astraflow_core.errors import UserError
from astraflow_core.types import BufferedRow, GroupSummary, Prompt
from astraflow_plugin_staleness.config import StalenessDecayConfig, StalenessThrottleConfig
from astraflow_plugin_staleness.decay import StalenessDecay
from astraflow_plugin_staleness.throttle import StalenessThrottle
from astraflow_testing.conformance.subject import context

CONTEXT = context("dataflow", Path("."))


def rows(versions):
    return [BufferedRow(n, "p", v, 9, 0.0, 2, 0.0, 0.0) for n, v in enumerate(versions)]


def throttle(**keys):
    return StalenessThrottle(StalenessThrottleConfig(**keys), CONTEXT)


def group(version, min_versions, policy="solver"):
    n = len(min_versions)
    whole = np.ones(n, dtype=np.int32)
    return GroupSummary(
        policy, Prompt("p"), np.zeros(n), whole, whole, np.array(min_versions, dtype=np.int32),
        np.zeros(n, dtype=np.bool_), version,
    )  # fmt: skip


@pytest.mark.parametrize("decay", [0.3, 0.8, 1.0])
def test_old_rows_are_drawn_less_often(decay):
    policy, versions = StalenessDecay(StalenessDecayConfig(decay=decay), CONTEXT), [5, 4, 3, 5]
    seen = Counter(policy.arrange(rows(versions), 5)[0].arrival for _ in range(4000))
    weights = decay ** (5 - np.array(versions, dtype=float))
    observed = [seen[n] / 4000 for n in range(4)]
    np.testing.assert_allclose(observed, weights / weights.sum(), atol=0.03)


def test_pairs_are_drawn_without_replacement_by_their_weights():
    policy, weights = StalenessDecay(StalenessDecayConfig(decay=0.5), CONTEXT), [1, 0.5, 0.25]
    seen = Counter(
        tuple(row.arrival for row in policy.arrange(rows([5, 4, 3]), 5)[:2]) for _ in range(6000)
    )
    for first in range(3):
        for second in {0, 1, 2} - {first}:
            chance = weights[first] / 1.75 * weights[second] / (1.75 - weights[first])
            assert seen[first, second] / 6000 == pytest.approx(chance, abs=0.03)


@given(st.lists(st.integers(0, 9), max_size=12), st.integers(0, 9))
def test_every_fresh_row_is_there_once(versions, version):
    arranged = StalenessDecay(StalenessDecayConfig(), CONTEXT).arrange(rows(versions), version)
    assert sorted(row.arrival for row in arranged) == list(range(len(versions)))


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=3), st.integers(0, 6)), max_size=12),
    st.sampled_from([0.0, 1.0, 2.0]),
)
def test_the_limit_follows_additive_increase_and_multiplicative_decrease(windows, target):
    policy, limit = throttle(target=target, first=4, more=2, cut=0.5, least=2), 4.0
    for number, (lags, wanted) in enumerate(windows):
        version, admitted = 10 + number, 0
        while admitted < wanted and not policy.hold():
            policy.on_admitted(Prompt("p"))
            admitted += 1
        assert admitted == min(wanted, int(limit))
        for lag in lags:
            policy.accept(group(version, [version - lag]))
            policy.accept(group(version, [0], policy="critic"))
        for _ in range(admitted):
            policy.on_ended(Prompt("p"), "failed")
        policy.on_version("critic", version)
        policy.on_version("solver", version + 1)
        reached = admitted == int(limit)
        if lags and np.mean(lags) > target:
            limit = max(limit / 2, 2.0)
        elif lags and reached:
            limit += 2
        elif reached:
            return  # what was reached is remembered until a group comes
        assert policy.metrics()["limit"] == int(limit)


def test_sequences_without_trained_tokens_say_nothing():
    policy = throttle(target=0)
    untrained = group(9, [-1, 3])
    policy.accept(
        GroupSummary(
            "solver", untrained.prompt, untrained.rewards, untrained.lengths,
            np.array([0, 2], dtype=np.int32), untrained.min_versions, untrained.truncated, 9,
        )
    )  # fmt: skip
    policy.on_version("solver", 10)
    assert policy.metrics()["staleness"] == 6


def test_keys_are_checked():
    with pytest.raises(UserError, match="'staleness_throttle': policy = 'critic'"):
        throttle(policy="critic")
    with pytest.raises(ValidationError, match="first must not be below least"):
        StalenessThrottleConfig(first=1, least=2)
    for wrong in (0, 1.1):
        with pytest.raises(ValidationError):
            StalenessDecayConfig(decay=wrong)
