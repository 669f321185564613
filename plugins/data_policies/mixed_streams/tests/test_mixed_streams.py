from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow_core.errors import UserError
from astraflow_core.types import BufferedRow, ComponentContext
from astraflow_plugin_mixed_streams.config import MixedStreamsConfig
from astraflow_plugin_mixed_streams.policy import MixedStreams
from astraflow_testing.conformance.subject import context


def given_context(*policies: str, max_staleness: int = 3) -> ComponentContext:
    here = context("dataflow", Path("."))
    run = replace(here.run, policies=policies, max_staleness=max_staleness)
    return replace(here, run=run, policy=policies[0])


CONTEXT = given_context("verifier", "solver")


def made(**keys):
    return MixedStreams(MixedStreamsConfig(source="solver", **keys), CONTEXT)


def rows(count):
    return [BufferedRow(n, "p", 0, 9, 0.0, 2, 0.0, 0.0) for n in range(count)]


@given(st.integers(1, 200), st.integers(0, 100), st.integers(0, 300))
def test_the_share_is_exact_and_the_rows_are_the_newest(count, hundredths, lent):
    policy = made(ratio=hundredths / 100)
    assert policy.most(count) == count * hundredths // 100 <= count
    borrowed = policy.borrow(count, rows(lent), 7)
    assert len(borrowed) == min(lent, policy.most(count))
    assert [row.arrival for row in borrowed] == list(range(lent))[lent - len(borrowed) :]


def test_the_age_is_bounded_by_the_run():
    assert made().max_age == 3
    assert made(max_age=1).max_age == 1
    with pytest.raises(UserError, match="max_age = 4 is looser than the run's max_staleness, 3"):
        made(max_age=4)


@pytest.mark.parametrize("policies", [("solver", "verifier"), ("verifier",), ("verifier", "other")])
def test_the_source_is_another_policy_of_the_run(policies):
    with pytest.raises(UserError, match="'solver' is not another policy"):
        MixedStreams(MixedStreamsConfig(source="solver"), given_context(*policies))
