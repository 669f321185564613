"""Gaps of log-probs, against float64 arithmetic on the joined rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from astraflow_runtime.logprob_gap import gap, shifted

ROWS = st.lists(
    arrays(np.float32, st.integers(1, 6), elements=st.floats(-20, 0, width=32)),
    min_size=1,
    max_size=5,
)


@given(ROWS, st.integers(0, 2**16))
def test_mean_largest_and_place(rows: list[np.ndarray], seed: int) -> None:
    random = np.random.default_rng(seed)
    other = [row + random.normal(0, 1, len(row)).astype(np.float32) for row in rows]
    found = gap(other, rows)
    apart = [np.abs(a.astype(np.float64) - b) for a, b in zip(other, rows, strict=True)]
    assert found.mean == pytest.approx(np.concatenate(apart).mean())
    assert found.largest == pytest.approx(np.concatenate(apart).max())
    assert apart[found.row][found.position] == pytest.approx(found.largest)
    assert found.engine == other[found.row][found.position]
    assert found.trainer == rows[found.row][found.position]
    assert found.tokens == sum(map(len, rows))


@given(ROWS)
def test_values_that_are_moved_fit_when_moved_back(rows: list[np.ndarray]) -> None:
    for by in (-1, 1):
        assert shifted([np.roll(row, -by) for row in rows], rows, by).largest == 0


def test_what_is_not_finite_is_infinitely_far() -> None:
    rows = [np.array([-1.0, -2.0], np.float32)]
    found = gap([np.array([-1.0, np.nan], np.float32)], rows)
    assert found.largest == np.inf and (found.row, found.position) == (0, 1)
    assert not found.fits(1e9)


def test_a_model_that_hardly_chooses_allows_less() -> None:
    flat = [np.full(8, -3.0, np.float32) + np.linspace(0, 1e-3, 8, dtype=np.float32)]
    steep = [np.linspace(-9, 0, 8, dtype=np.float32)]
    moved = [[rows[0] + np.float32(0.01)] for rows in (flat, steep)]
    assert not gap(moved[0], flat).fits(0.05)
    assert gap(moved[1], steep).fits(0.05)


def test_nothing_is_no_gap() -> None:
    empty = [np.zeros(0, np.float32)]
    assert gap(empty, empty).tokens == 0
