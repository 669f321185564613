"""The table of the columns of a row: what the fields of :class:`~astraflow_core.types.batch.Batch` declare,
for all code that writes, reads, checks or documents them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Column:
    """An array with one element ``per`` token, row or turn. ``name`` and ``dtype`` are those of the field that declares it.

    ``about``: what each element is. ``not_sampled``: what stands where no policy sampled, ``None`` where that is not
    another value. ``of_row``: the field of :class:`~astraflow_core.types.policy_data.BufferedRow` with the value of a row.
    ``statistic``: equal for rows of one group. ``finite``: every value of a batch must be, and those of tokens where
    they are trained. ``given``: by whom; the dataflow serves it in a batch, ``"source"`` only in one with rows of
    another policy, and what the trainer's loop adds is not sent. ``sparse``: zero for most tokens and absent from most
    batches; a pushed group and a batch on the wire have positions and values. ``keys``: hashes of what a workflow names.
    """

    per: Literal["token", "row", "turn"]
    about: str
    not_sampled: int | None = None
    of_row: str = ""
    statistic: bool = False
    finite: bool = False
    given: Literal["dataflow", "source", "trainer"] = "dataflow"
    sparse: bool = False
    keys: bool = False
    name: str = ""
    dtype: npt.DTypeLike = np.float32

    @property
    def raw(self) -> np.dtype[Any]:
        """As it is read from bytes whose sender may have put anything there: a flag is uint8."""
        dtype = np.dtype(self.dtype)
        return np.dtype(np.uint8) if dtype == np.bool_ else dtype


def columns_of(declaring: type) -> tuple[Column, ...]:
    """The columns that the annotated fields of a class declare, in their order."""
    found = []
    for name, hint in get_type_hints(declaring, include_extras=True).items():
        column = next((c for c in getattr(hint, "__metadata__", ()) if isinstance(c, Column)), None)
        if column is not None:
            found.append(replace(column, name=name, dtype=_dtype(get_args(hint)[0])))
    return tuple(found)


def _dtype(array: Any) -> np.dtype[Any]:
    """Of ``NDArray[np.int32]`` or ``NDArray[np.int32] | None``."""
    if get_origin(array) in (Union, UnionType):
        array = get_args(array)[0]
    # NDArray is a class with parameters before NumPy 2.5 and an alias since: the scalar is the innermost last argument of both.
    while arguments := get_args(array):
        array = arguments[-1]
    dtype: np.dtype[Any] = np.dtype(array)
    return dtype


def zeros(columns: Iterable[Column], rows: int, tokens: int) -> dict[str, npt.NDArray[Any]]:
    """Name → array of zeros, of each column."""
    return {c.name: np.zeros(rows if c.per == "row" else tokens, c.dtype) for c in columns}
