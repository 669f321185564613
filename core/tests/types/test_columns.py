"""The table of the columns is what the fields of a class declare."""

from __future__ import annotations

from dataclasses import dataclass
from types import GenericAlias
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from astraflow_core.types.batch import BATCH_COLUMNS, Batch
from astraflow_core.types.columns import Column, columns_of, zeros


@dataclass
class Measured:
    """Arrays beside fields that are none."""

    name: str
    heights: Annotated[npt.NDArray[np.int16], Column("row", "of each")]
    flags: Annotated[npt.NDArray[np.bool_] | None, Column("token", "of each", 0)] = None


def test_names_and_dtypes_are_those_of_the_fields() -> None:
    heights, flags = columns_of(Measured)
    assert (heights.name, heights.dtype, heights.per) == ("heights", np.int16, "row")
    assert (flags.name, flags.dtype, flags.raw, flags.not_sampled) == (
        "flags",
        np.bool_,
        np.uint8,
        0,
    )
    blank = zeros((heights, flags), rows=2, tokens=5)
    assert blank["heights"].tolist() == [0, 0] and blank["flags"].tolist() == [False] * 5


def test_arrays_may_be_written_as_any_numpy_writes_them() -> None:
    since_2_5 = GenericAlias(list, (np.int16,))
    before = np.ndarray[Any, np.dtype[np.uint8]]

    class AliasArrays:
        """Fields as NumPy 2.5 writes ``NDArray[np.int16]``, an alias with one parameter, and as it wrote them before."""

    AliasArrays.__annotations__ = {
        "alias": Annotated[since_2_5, Column("row", "of each")],
        "optional": Annotated[since_2_5 | None, Column("row", "of each")],
        "class": Annotated[before, Column("row", "of each")],
    }
    assert [column.dtype for column in columns_of(AliasArrays)] == [np.int16, np.int16, np.uint8]


def test_every_array_of_a_batch_is_taken_by_row_or_by_token() -> None:
    lengths = np.array([2, 3], np.int32)
    filled = zeros(BATCH_COLUMNS, 2, 5) | {"lengths": lengths}
    numbered = {
        c.name: (filled[c.name] + np.arange(len(filled[c.name]))).astype(c.dtype)
        for c in BATCH_COLUMNS
        if c.name not in ("lengths", "loss_mask")
    }
    batch = Batch(id="b", policy="p", version=0, **(filled | numbered))
    taken = batch.take(np.array([1]))
    for column in BATCH_COLUMNS:
        of_row = slice(1, 2) if column.per == "row" else slice(2, 5)
        expected = getattr(batch, column.name)[of_row]
        assert getattr(taken, column.name).tolist() == expected.tolist(), column.name
