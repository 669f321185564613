from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from astraflow_core.protocols.data_policy import Accept, Metrics
from astraflow_core.types import ComponentContext, GroupSummary, Prompt, RunInfo
from astraflow_plugin_dynamic_sampling.config import DynamicSamplingConfig
from astraflow_plugin_dynamic_sampling.policy import DynamicSampling

RUN = RunInfo("run", 0, 1, 0, ("solver",), Path("."))
CONTEXT = ComponentContext(RUN, "dataflow", "solver", 0, Path("."))


def policy(**keys):
    return DynamicSampling(DynamicSamplingConfig(**keys), CONTEXT)


def summary(rewards):
    n = len(rewards)
    whole = np.ones(n, dtype=np.int32)
    return GroupSummary(
        policy="solver",
        prompt=Prompt("p"),
        rewards=np.array(rewards, dtype=np.float64),
        lengths=whole,
        trained=whole,
        min_versions=whole,
        truncated=np.zeros(n, dtype=np.bool_),
        version=1,
    )


@pytest.mark.parametrize(
    ("rewards", "keys", "kept"),
    [
        ((0.0, 0.0, 0.0), {}, False),
        ((1.0, 1.0), {}, False),
        ((0.0, 1.0), {}, True),
        ((1.0, 1.000001), {}, True),
        ((0.1 + 0.2, 0.3, 0.3), {}, False),
        ((1.0, 1.0 + 1e-8), {}, False),
        ((0.0, 1e-9), {}, True),
        ((1.0, 1.000001), {"tolerance": 1e-5}, False),
        ((0.0, 1e-9), {"tolerance": 1e-5}, True),
        ((-2.0, -2.1), {"tolerance": 0.1}, False),
        ((-2.0, -2.1, 2.0), {"tolerance": 0.1}, True),
        ((1.0,), {}, False),
        ((1.0,), {"singletons": "keep"}, True),
    ],
)
def test_only_groups_whose_rewards_differ_are_kept(rewards, keys, kept):
    assert policy(**keys).accept(summary(rewards)).accepted is kept


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=16))
def test_the_exact_rule_is_that_of_a_set_of_what_is_trained(rewards):
    assert policy().accept(summary(rewards)).accepted is (len(set(np.float32(rewards))) > 1)


@given(
    st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=8), st.floats(1e-9, 0.5), st.floats(0, 0.5)
)
def test_the_tolerances_are_those_of_allclose(rewards, tolerance, absolute):
    single = np.float32(rewards)
    equal = np.allclose(single, single[0], rtol=tolerance, atol=absolute)
    tolerant = policy(tolerance=tolerance, absolute_tolerance=absolute)
    assert tolerant.accept(summary(rewards)).accepted is not bool(equal)


def test_reasons_and_counts():
    p = policy()
    assert p.accept(summary([1.0, 1.0])).reason == "all rewards equal"
    assert p.accept(summary([1.0])).reason == "group of one"
    p.accept(summary([0.0, 1.0]))
    assert p.metrics() == {"groups": 3.0, "dropped": 2.0}
    assert isinstance(p, Accept)
    assert isinstance(p, Metrics)


def test_keys_are_checked():
    with pytest.raises(ValidationError, match="singletons"):
        DynamicSamplingConfig(singletons="maybe")
    with pytest.raises(ValidationError, match="tolerance"):
        DynamicSamplingConfig(tolerance=-1)
