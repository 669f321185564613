"""The three-zone rule against a restatement in whole numbers."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow_core.types import ComponentContext, PoolTarget, PoolWindow, RunInfo
from astraflow_plugin_three_zones.config import ThreeZonesConfig
from astraflow_plugin_three_zones.policy import ThreeZones

CONTEXT = ComponentContext(RunInfo("run", 0, 1, 1, (), Path()), "dataflow", "", 0, Path())


def rule(**keys):
    return ThreeZones(ThreeZonesConfig(**keys), CONTEXT)


def target(keys, *window):
    return rule(**keys).pool_size(PoolWindow(*window))


@pytest.mark.parametrize(
    ("size", "waiting", "accepted", "consumed", "branch", "becomes"),
    [
        # The paper's pool of 6 to 11, its thresholds 0.05 and 0.10 and its margin 1.10.
        (6, 0.45, 100, 100, "grow", 11),  # 6 / 0.55 = 10.9
        (6, 0.0, 100, 100, "hold", 6),  # 6 · 1.1 = 6.6, never above 6
        (11, 0.0, 200, 100, "shrink", 7),  # 11 · 0.5 · 1.1 = 6.05
        (11, 0.0, 1000, 1000 - 91, "hold", 11),  # 11 · 0.909 · 1.1 = 10.9989
        (11, 0.0, 1100, 1000, "hold", 11),  # 11 · (10 / 11) · 1.1 = 11 exactly
        (10, 0.0, 110, 100, "hold", 10),  # 10 · (10 / 11) · 1.1 = 10 exactly
        (10, 0.0, 122, 100, "hold", 10),  # 10 · 0.82 · 1.1 = 9.02, rounded up
        (10, 0.10, 1, 1, "hold", 10),  # the thresholds are strict
        (10, 0.05, 200, 100, "hold", 10),
        (10, 0.07, 200, 100, "hold", 10),  # the dead band
        (4, 0.2, 1, 1, "grow", 5),  # 4 / 0.8 = 5 exactly
        (7, 0.3, 1, 1, "grow", 10),  # 7 / 0.7 = 10 exactly
        (1, 0.8, 1, 1, "grow", 5),  # 1 / (1 - 0.8) = 5.000000000000001, which AstraFlow rounds to 6
        (1, 1.0, 1, 1, "grow", 20),  # w is capped at 0.95
        (3, 0.99, 0, 0, "grow", 60),
        (0, 0.9, 0, 0, "hold", 0),  # an empty pool gives no information
        (0, 0.0, 9, 1, "hold", 0),
        (5, 0.0, 0, 10, "hold", 5),  # nothing was accepted
        (5, 0.0, 10, 0, "hold", 5),  # nothing was consumed
        (5, 0.0, 10_000, 1, "shrink", 1),  # never to none
    ],
)
def test_cases_worked_by_hand(size, waiting, accepted, consumed, branch, becomes):
    assert target({}, size, waiting, accepted, consumed) == PoolTarget(branch, becomes)


@given(
    size=st.integers(0, 64),
    waiting=st.integers(0, 100),
    accepted=st.integers(0, 10**6),
    consumed=st.integers(0, 10**6),
    low=st.integers(0, 20),
    band=st.integers(0, 20),
    margin=st.integers(100, 200),
)
def test_the_rule_is_the_equation(size, waiting, accepted, consumed, low, band, margin):
    """Equation 1 in exact fractions; w in hundredths."""
    keys = {"grow_above": (low + band) / 100, "shrink_below": low / 100, "margin": margin / 100}
    if min(waiting, 95) > low + band and size:
        left = max(100 - waiting, 5)
        expected = -(-size * 100 // left)
    elif waiting < low and size and accepted and consumed:
        needed = Fraction(size * consumed * margin, accepted * 100)
        expected = min(size, -(-needed.numerator // needed.denominator))
    else:
        expected = size
    assert target(keys, size, waiting / 100, accepted, consumed).size == expected


@pytest.mark.parametrize(
    ("size", "waiting", "held_back", "branch", "becomes"),
    [
        (4, 0.5, 0.0, "grow", 8),
        (4, 0.5, 0.25, "grow", 6),  # three of four are busy: 3 / 0.5
        (4, 0.5, 0.5, "hold", 4),  # what stands empty would be enough
        (4, 0.5, 0.9, "hold", 4),  # never fewer while a trainer waits
        (4, 0.0, 0.5, "shrink", 3),  # 4 · 0.5 · 1.1 = 2.2
        (8, 0.0, 0.5, "shrink", 5),  # 8 · 0.5 · 1.1 = 4.4
    ],
)
def test_a_pool_that_the_bound_holds_back_does_not_grow(size, waiting, held_back, branch, becomes):
    assert target({}, size, waiting, 100, 100, held_back) == PoolTarget(branch, becomes)


@pytest.mark.parametrize(
    ("size", "waiting", "becomes"),
    [(2, 0.8, 6), (2, 0.5, 4), (5, 0.0, 2), (1, 0.0, 2), (7, 0.08, 6), (2, 0.08, 2)],
)
def test_the_pool_stays_within_its_bounds(size, waiting, becomes):
    found = target({"min_replicas": 2, "max_replicas": 6}, size, waiting, 1000, 10)
    assert found.size == becomes
    assert (found.branch == "grow") == (becomes > size)
    assert (found.branch == "hold") == (becomes == size)


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({"min_replicas": 3, "max_replicas": 2}, "must not be below"),
        ({"shrink_below": 0.2}, "must not be above"),
        ({"margin": 0.9}, "greater than or equal to 1"),
        ({"every": 0}, "greater than or equal to 1"),
    ],
)
def test_settings_that_do_not_fit_are_refused(keys, what):
    with pytest.raises(ValueError, match=what):
        ThreeZonesConfig(**keys)
