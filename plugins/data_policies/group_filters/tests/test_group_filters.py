from __future__ import annotations

import math
import statistics
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from astraflow_core.types import GroupSummary, Prompt
from astraflow_plugin_group_filters import config as keys_of
from astraflow_plugin_group_filters import filters
from astraflow_testing.conformance.subject import context

CONTEXT = context("dataflow", Path("."))
OF = {
    "mean": statistics.fmean,
    "min": min,
    "max": max,
    "std": lambda v: statistics.stdev(v) if len(v) > 1 else 0.0,
}


def group(rewards, lengths=None, truncated=None):
    n = len(rewards)
    lengths = np.array(lengths or [9] * n, dtype=np.int32)
    return GroupSummary(
        "solver", Prompt("p"), np.array(rewards, dtype=np.float64), lengths, lengths - 4,
        np.ones(n, dtype=np.int32), np.array(truncated or [False] * n), 1,
    )  # fmt: skip


def verdict(name, group, **keys):
    config = getattr(keys_of, f"{name}Config")(**keys)
    return getattr(filters, name)(config, CONTEXT).accept(group)


@given(
    st.lists(st.floats(-3, 3), min_size=1, max_size=8),
    st.sampled_from(list(OF)), st.floats(-3, 3), st.floats(0, 3),
)  # fmt: skip
def test_rewards_within_bounds_are_kept(rewards, of, low, width):
    value, high = OF[of](rewards), low + width
    if min(abs(value - low), abs(value - high)) < 1e-9:
        return
    made = verdict("RewardFilter", group(rewards), of=of, low=low, high=high)
    assert made.accepted is (low < value < high)
    if not made.accepted:
        assert made.reason == f"{of} reward too {'low' if value < low else 'high'}"
    assert verdict("RewardFilter", group(rewards), of=of, low=low).accepted is (value > low)
    assert verdict("RewardFilter", group(rewards), of=of, high=high).accepted is (value < high)


def test_bounds_are_included():
    assert verdict("RewardFilter", group([0.0, 1.0]), low=0.5, high=0.5).accepted


@given(
    st.lists(st.integers(5, 99), min_size=1, max_size=8), st.sampled_from(["min", "max", "mean"])
)
def test_lengths_count_all_or_trained_tokens(lengths, of):
    for tokens, prompt in (("all", 0), ("trained", 4)):
        value = OF[of]([length - prompt for length in lengths])
        keys = {"of": of, "tokens": tokens}
        made = group([0.0] * len(lengths), lengths)
        assert verdict("LengthFilter", made, high=math.ceil(value), **keys).accepted
        assert verdict("LengthFilter", made, high=value - 0.01, **keys).reason == "too long"
        assert verdict("LengthFilter", made, low=value + 0.01, **keys).reason == "too short"


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.sampled_from([0.0, 0.25, 0.5]))
def test_groups_of_which_too_many_were_cut_off_are_dropped(truncated, most):
    made = group([0.0] * len(truncated), truncated=truncated)
    expected = sum(truncated) <= most * len(truncated)
    assert verdict("OverlongFilter", made, most=most).accepted is expected


@given(st.integers(1, 8), st.integers(1, 8))
def test_partial_groups_need_enough_sequences(size, at_least):
    made = verdict("PartialGroups", group([0.0] * size), at_least=at_least)
    assert made.accepted is (size >= at_least)


def test_keys_are_checked():
    with pytest.raises(ValidationError, match="set low, high or both"):
        keys_of.RewardFilterConfig()
    with pytest.raises(ValidationError, match="low must not exceed high"):
        keys_of.LengthFilterConfig(low=9, high=8)
    for wrong in (1.0, -0.1):
        with pytest.raises(ValidationError):
            keys_of.OverlongFilterConfig(most=wrong)
