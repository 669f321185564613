"""Targets become rows of a batch: each is predicted from the tokens before it, and results come back in its place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astraflow_contrib_tinker.wire.datums import Array, Datum
from astraflow_contrib_tinker.work import rows as rows_module
from astraflow_contrib_tinker.work.rows import Rows, rows_of
from astraflow_core.errors import Refused

VOCABULARY, POSITIONS = 32, 16


def datum(tokens: list[int], targets: Any, **more: Any) -> Datum:
    inputs: dict[str, Array] = {"target_tokens": np.array(targets, np.int64)}
    inputs |= {name: np.array(value, np.float32) for name, value in more.items()}
    return Datum(np.array(tokens, np.int32), inputs)


def asked(found: Rows, number: int) -> dict[tuple[int, ...], tuple[list[int], int]]:
    """Cell of a datum's targets → the tokens before the target in its row, and the target."""
    batch, told = found.batch, {}
    for cell in np.ndindex(found.places[number].shape):
        place = int(found.places[number][cell])
        if place >= 0:
            assert batch.loss_mask[place]
            start = int(batch.offsets[batch.row_of_token[place]])
            told[cell] = batch.tokens[start:place].tolist(), int(batch.tokens[place])
    return told


def test_targets_that_are_the_next_tokens_share_a_row() -> None:
    found = rows_of([datum([1, 2, 3], [2, 3, 9]), datum([5], [6])], VOCABULARY, POSITIONS)
    assert found.batch.lengths.tolist() == [4, 2] and found.batch.trained_tokens == 4
    assert asked(found, 0) == {(0,): ([1], 2), (1,): ([1, 2], 3), (2,): ([1, 2, 3], 9)}
    assert asked(found, 1) == {(0,): ([5], 6)}
    values = np.arange(6, dtype=np.float32)
    assert [part.tolist() for part in found.back(values)] == [[1, 2, 3], [5]]


def test_another_target_has_a_row_of_its_own() -> None:
    given = [datum([1, 2, 3], [2, 7, -1], weights=[1, 2, 3])]
    found = rows_of(given, VOCABULARY, POSITIONS)
    assert asked(found, 0) == {(0,): ([1], 2), (1,): ([1, 2], 7)}
    assert found.own.tolist() == [found.places[0][1]]
    weights = found.column(given, "weights")
    assert weights[found.places[0][:2]].tolist() == [1, 2] and weights.sum() == 3


def test_several_targets_for_a_token() -> None:
    given = [datum([4, 5], [[5, 6], [7, 8]], weights=[[0.5, 0.5], [1, 0]])]
    found = rows_of(given, VOCABULARY, POSITIONS)
    assert asked(found, 0) == {(0, 0): ([4], 5), (0, 1): ([4], 6), (1, 0): ([4, 5], 7)}
    back = found.back(np.full(len(found.batch.tokens), 3, np.float32))
    assert back[0].tolist() == [[3, 3], [3, 0]]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (datum([], []), "0 tokens"),
        (datum([1] * POSITIONS, [1] * POSITIONS), "1 to 15"),
        (datum([1, 2], [2]), "one entry for each token"),
        (datum([1, 2], [2, 3], weights=[1]), r"data\[0\].weights has the shape \[1\]"),
        (datum([1, VOCABULARY], [2, 3]), "vocabulary"),
        (datum([1, -1], [2, 3]), "vocabulary"),
        (datum([1], [-2]), "vocabulary"),
        (Datum(np.array([1], np.int32), {}), "target_tokens"),
    ],
)
def test_what_does_not_fit_is_refused(given: Datum, said: str) -> None:
    with pytest.raises(Refused, match=said):
        rows_of([given], VOCABULARY, POSITIONS)


def test_a_request_has_bounded_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "MOST_TOKENS", 20)
    rows_of([datum([1, 2, 3], [2, 3, 4])] * 5, VOCABULARY, POSITIONS)
    with pytest.raises(Refused, match="more than 20 tokens"):
        rows_of([datum([1, 2, 3], [9, 9, 9])] * 3, VOCABULARY, POSITIONS)
