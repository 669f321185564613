"""Columns that are zero for most tokens, on the wire: positions and values, two buffers of a frame for each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from astraflow_core.errors import WireError
from astraflow_core.types import Sequence
from astraflow_core.types.columns import Column
from astraflow_core.types.trajectory import NOT_SAMPLED
from astraflow_wire.column_table import SPARSE_COLUMNS
from astraflow_wire.columns import LARGEST_REWARD
from astraflow_wire.frames import Buffer, Frame


@dataclass(frozen=True, slots=True)
class SparseValues:
    """``values`` at the tokens ``positions`` (int64, ascending), of all tokens that lie end to end."""

    positions: npt.NDArray[np.int64]
    values: npt.NDArray[Any]

    def between(self, start: int, end: int) -> SparseValues:
        """Those of the tokens from ``start`` to before ``end``, counted from ``start``."""
        first, after = np.searchsorted(self.positions, (start, end))
        return SparseValues(self.positions[first:after] - start, self.values[first:after])

    def dense(self, tokens: int) -> npt.NDArray[Any]:
        """An element for each of the ``tokens``, zero where no value is."""
        values = np.zeros(tokens, self.values.dtype)
        values[self.positions] = self.values
        return values


Sparse = Mapping[str, SparseValues]
"""Name of a column → its values. Columns that nothing has a value of are absent."""
NONE: Sparse = {}


def joined(pieces: Iterable[tuple[Sparse, int]]) -> Sparse:
    """Those of pieces that lie end to end, each with its number of tokens."""
    found: dict[str, list[SparseValues]] = {}
    start = 0
    for sparse, tokens in pieces:
        for name, given in sparse.items():
            shifted = SparseValues(given.positions + start, given.values)
            found.setdefault(name, []).append(shifted)
        start += tokens
    return {
        name: SparseValues(
            np.concatenate([part.positions for part in found[name]]),
            np.concatenate([part.values for part in found[name]]),
        )
        for name in (column.name for column in SPARSE_COLUMNS)
        if name in found
    }


def of_sequence(sequence: Sequence) -> Sparse:
    """What a sequence of a workflow has."""
    found: dict[str, SparseValues] = {}
    for column in SPARSE_COLUMNS:
        given = getattr(sequence, column.name)
        if isinstance(given, np.ndarray):
            found |= of_columns({column.name: given.astype(column.dtype, copy=False)})
        elif given:
            positions, values = zip(*sorted(given.items()), strict=True)
            if column.keys:
                values = tuple(map(key_of, values))
            found[column.name] = SparseValues(
                np.array(positions, np.int64), np.array(values, column.dtype)
            )
    return found


def key_of(name: int | str) -> int:
    """A hash of 64 bits of a text or an integer, never 0."""
    text = name if isinstance(name, str) else str(int(name))
    digest = xxhash.xxh3_64_digest(text.encode("utf-8", "surrogatepass"))
    return int.from_bytes(digest, "little", signed=True) or 1


def of_columns(dense: Mapping[str, npt.NDArray[Any]]) -> Sparse:
    """Of columns with an element for each token."""
    found = {}
    for name, values in dense.items():
        positions = np.flatnonzero(values)
        found[name] = SparseValues(positions, values[positions])
    return found


def buffers(sparse: Sparse) -> list[Buffer]:
    """As they follow the other columns in a frame whose header names them."""
    return [array for given in sparse.values() for array in (given.positions, given.values)]


def read(frame: Frame, first: int, names: list[str], tokens: int, after: int = 0) -> Sparse:
    """The columns ``names`` of a frame, from buffer ``first`` on, with ``after`` others behind them; :class:`WireError`
    if a name has none, or a position is not among the ``tokens`` or not greater than the previous one."""
    frame.check_count(first + 2 * len(names) + after)
    if not names:
        return NONE
    columns = [column for column in SPARSE_COLUMNS if column.name in names]
    if [column.name for column in columns] != names:
        known = ", ".join(column.name for column in SPARSE_COLUMNS)
        raise WireError(
            f"sparse names the columns {', '.join(names)!r:.200}; expected some of: {known}; in this order"
        )
    found = {}
    for index, column in enumerate(columns):
        place = first + 2 * index
        count = frame.buffers[place].nbytes // 8
        positions = frame.array(place, np.int64, count)
        if count and not (
            positions[0] >= 0 and positions[-1] < tokens and (np.diff(positions) > 0).all()
        ):
            raise WireError(
                f"{column.name}: the positions are not ascending numbers of the {tokens} tokens, from 0"
            )
        found[column.name] = SparseValues(positions, frame.array(place + 1, column.dtype, count))
    return found


def problems(sequence: Sequence) -> Iterator[str]:
    """What is wrong with the sparse columns of a sequence that a workflow made, as the end of a sentence about it."""
    for column in SPARSE_COLUMNS:
        given = getattr(sequence, column.name)
        if given is None:
            continue
        if isinstance(given, np.ndarray):
            if problem := _problem_of_array(sequence, given):
                yield f"whose {column.name} {problem}"
            continue
        if not isinstance(given, Mapping):
            yield (
                f"whose {column.name} is a {type(given).__name__}; expected a mapping of positions of tokens to numbers"
            )
            continue
        for position, value in given.items():
            if problem := _problem(sequence, column, position, value):
                yield f"whose {column.name} {problem}"


def _problem_of_array(sequence: Sequence, given: npt.NDArray[Any]) -> str:
    """What is wrong with a column that has an element for each token."""
    if given.shape != sequence.tokens.shape or given.dtype.kind != "f":
        return (
            f"is an array of {given.dtype} of shape {given.shape}; expected one number for each of the "
            f"{len(sequence.tokens)} tokens"
        )
    if not (np.abs(given) <= LARGEST_REWARD).all():
        return f"has a number that is not finite; expected numbers within ±{LARGEST_REWARD:g}"
    unsampled = np.flatnonzero((given != 0) & (sequence.versions == NOT_SAMPLED))
    return f"names token {unsampled[0]}, which no policy sampled" if unsampled.size else ""


def _problem(sequence: Sequence, column: Column, position: Any, value: Any) -> str:
    size = len(sequence.tokens)
    if not isinstance(position, Integral) or not 0 <= int(position) < size:
        return f"names token {position!r:.40}; the sequence has tokens 0 to {size - 1}"
    if sequence.versions[int(position)] == NOT_SAMPLED:
        return f"names token {position}, which no policy sampled"
    if column.keys:
        wrong = not isinstance(value, str | Integral)
        return (
            f"has {value!r:.40} at token {position}; expected a text or an integer" if wrong else ""
        )
    if not isinstance(value, Real) or not abs(float(value)) <= LARGEST_REWARD:
        return (
            f"has {value!r:.40} at token {position}; expected a number within ±{LARGEST_REWARD:g}"
        )
    return ""
