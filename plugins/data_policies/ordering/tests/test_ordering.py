from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from astraflow_core.protocols.data_policy import Key
from astraflow_core.types import BufferedRow, ComponentContext, RunInfo
from astraflow_plugin_ordering.config import OrderingConfig
from astraflow_plugin_ordering.policy import Ordering

RUN = RunInfo("run", 0, 1, 0, ("solver",), Path("."))
CONTEXT = ComponentContext(RUN, "dataflow", "solver", 0, Path("."))


def served(versions, **keys):
    """Arrival numbers in the order of service; ties by arrival, as the buffer breaks them."""
    policy = Ordering(OrderingConfig(**keys), CONTEXT)
    assert isinstance(policy, Key)
    rows = [BufferedRow(i, "p", v, 5, 0.0, 2, 0.0, 0.0) for i, v in enumerate(versions)]
    return [row.arrival for row in sorted(rows, key=lambda row: (policy.key(row), row.arrival))]


def test_the_oldest_version_comes_first_and_version_0_counts():
    assert served([3, 0, 2, 0, 3]) == [1, 3, 2, 0, 4]


def test_first_come_first_served():
    assert served([3, 0, 2, 0, 3], by="fifo") == [0, 1, 2, 3, 4]


@given(st.lists(st.integers(0, 20), min_size=1, max_size=64), st.integers(0, 4))
def test_no_other_order_loses_fewer_rows_to_staleness(versions, limit):
    """Serve one row per version, starting at the newest; count rows that are in time."""
    newest = max(versions)

    def in_time(order):
        return sum(newest + step - versions[row] <= limit for step, row in enumerate(order))

    waiting, trained, version = served(versions), 0, newest
    while waiting := [row for row in waiting if version - versions[row] <= limit]:
        waiting.pop(0)
        trained += 1
        version += 1
    assert trained >= in_time(range(len(versions)))
    assert trained >= in_time(sorted(range(len(versions)), key=lambda row: -versions[row]))


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=9))
def test_the_most_surprising_rows_come_first(rewards):
    policy = Ordering(OrderingConfig(by="surprise"), CONTEXT)
    mean, std = float(np.mean(rewards)), float(np.std(rewards, ddof=1))
    rows = [BufferedRow(i, "p", 3, 5, r, len(rewards), mean, std) for i, r in enumerate(rewards)]
    order = sorted(rows, key=lambda row: (policy.key(row), row.arrival))
    distances = [abs(row.reward - mean) for row in order]
    np.testing.assert_allclose(distances, sorted(distances, reverse=True))
    np.testing.assert_allclose(
        [-policy.key(row) for row in rows], np.abs(np.array(rewards) - mean) / (std + 1e-5)
    )


def test_keys_are_checked():
    with pytest.raises(ValidationError, match="by"):
        OrderingConfig(by="lifo")
