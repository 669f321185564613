"""The sequences of a request as a batch of a trainer, and its results back in the form of the request.

A client names a target for every token of the input. Where that is the next token, one row predicts all targets of a sequence.
Every other target gets a separate row: the tokens before it and then the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from astraflow_contrib_tinker.wire.datums import Datum
from astraflow_core.errors import Refused
from astraflow_core.types import Batch

MOST_TOKENS = 1 << 22
"""Of the rows of one request."""
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Rows:
    """``batch``, and of each datum ``places``, int64 in the shape of its targets: where among the tokens of the batch a
    target is, or -1 where none is asked for. ``own``: places of targets that have rows of their own."""

    batch: Batch
    places: Sequence[npt.NDArray[np.int64]]
    own: npt.NDArray[np.int64]

    def column(self, data: Sequence[Datum], name: str) -> Floats:
        """What the data say of each target under ``name``, at its place: float32 ``[N]``, 0 elsewhere. :class:`Refused` if
        it is not a finite number where a target is trained."""
        found, flat = np.zeros(len(self.batch.tokens), np.float32), _flat(self.places)
        values = _flat([datum.inputs[name] for datum in data]).astype(np.float32)
        asked = flat >= 0
        finite, trained = np.isfinite(values), np.zeros(len(flat), np.bool_)
        trained[asked] = self.batch.loss_mask[flat[asked]]
        if (number := _holder(trained & ~finite, self.places)) is not None:
            raise Refused(400, f"data[{number}].{name} has a value that is not a finite number")
        found[flat[asked]] = np.where(finite, values, np.float32(0))[asked]
        return found

    def back(self, per_token: Floats) -> list[Floats]:
        """Values of the batch's tokens in the shapes of the targets, 0 where no target was asked for."""
        flat = _flat(self.places)
        values = np.where(flat >= 0, per_token[np.maximum(flat, 0)], np.float32(0))
        starts = np.cumsum([0, *(places.size for places in self.places)]).tolist()
        return [
            values[start : start + places.size].reshape(places.shape)
            for start, places in zip(starts, self.places, strict=False)
        ]

    def masked(self, mask: npt.NDArray[np.bool_]) -> Rows:
        """The same with another loss mask, bool ``[N]``."""
        return replace(self, batch=replace(self.batch, loss_mask=mask & self.batch.loss_mask))


def rows_of(data: Sequence[Datum], vocabulary: int, positions: int) -> Rows:
    """The batch; :class:`Refused` if a datum's tensors do not fit each other, a token is not in the model's vocabulary, or a row is
    longer than ``positions``."""
    rows: list[npt.NDArray[np.int32]] = []
    places: list[npt.NDArray[np.int64]] = []
    own: list[tuple[int, tuple[int, ...]]] = []
    start = total = 0
    targets_of = [_targets(datum, number, positions) for number, datum in enumerate(data)]
    _check_ids(data, targets_of, vocabulary)
    for number, (datum, targets) in enumerate(zip(data, targets_of, strict=True)):
        row, found = _main_row(datum, targets, start)
        rows.append(row)
        places.append(found)
        start += len(row)
        cells = _missing(datum, targets, found)
        own += [(number, cell) for cell in cells]
        total += len(row) + sum(cell[0] + 2 for cell in cells)
        if total > MOST_TOKENS:
            raise Refused(
                400,
                f"the request makes more than {MOST_TOKENS} tokens: every target that is not the next token of its input "
                "is computed with all tokens before it; send less at once",
            )
    alone = []
    for number, cell in own:
        target = np.int32(data[number].inputs["target_tokens"][cell])
        rows.append(np.append(data[number].tokens[: cell[0] + 1], target))
        start += len(rows[-1])
        places[number][cell] = start - 1
        alone.append(start - 1)
    mask, asked = np.zeros(start, np.bool_), _flat(places)
    mask[asked[asked >= 0]] = True
    batch = _batch(rows, mask)
    return Rows(batch, places, np.array(alone, np.int64))


def _flat(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """All their values, one after the other: one operation on these costs as much as on one small array."""
    return np.concatenate([array.reshape(-1) for array in arrays])


def _targets(datum: Datum, number: int, positions: int) -> npt.NDArray[np.int64]:
    where = f"data[{number}]"
    targets = datum.inputs.get("target_tokens")
    if targets is None or targets.dtype != np.int64:
        raise Refused(400, f"{where} needs target_tokens, int64")
    length = len(datum.tokens)
    if not 0 < length < positions:
        raise Refused(
            400, f"{where} has {length} tokens; the model takes 1 to {positions - 1} and a target"
        )
    for name, value in datum.inputs.items():
        fits = value.shape == targets.shape and len(value) == length
        if not fits:
            raise Refused(
                400,
                f"{where}.{name} has the shape {list(value.shape)}; model_input has {length} tokens and target_tokens the "
                f"shape {list(targets.shape)}: one entry for each token is expected",
            )
    return targets.astype(np.int64, copy=False)


def _holder(wrong: npt.NDArray[np.bool_], arrays: Sequence[npt.NDArray[Any]]) -> int | None:
    """The number of the first of ``arrays`` that has a wrong value; ``wrong`` decides for each of their values."""
    found = np.flatnonzero(wrong)
    ends = np.cumsum([array.size for array in arrays])
    return int(np.searchsorted(ends, found[0], "right")) if len(found) else None


def _check_ids(
    data: Sequence[Datum], targets_of: Sequence[npt.NDArray[np.int64]], vocabulary: int
) -> None:
    for arrays, lowest in (([datum.tokens for datum in data], 0), (targets_of, -1)):
        ids = _flat(arrays)
        number = _holder((ids < lowest) | (ids >= vocabulary), arrays)
        if number is not None:
            raise Refused(400, f"data[{number}] has a token outside the vocabulary of {vocabulary}")


def _main_row(
    datum: Datum, targets: npt.NDArray[np.int64], start: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """The input with its last target, and where in the batch it predicts targets."""
    if targets.ndim == 1 and targets[-1] >= 0 and (datum.tokens[1:] == targets[:-1]).all():
        row = np.concatenate((datum.tokens, targets[-1:].astype(np.int32)))
        return row, np.arange(start + 1, start + len(row))
    found = np.full(targets.shape, -1, np.int64)
    if targets.ndim > 1:
        return datum.tokens, found
    last = targets[-1:] if targets[-1] >= 0 else targets[:0]
    row = np.concatenate((datum.tokens, last.astype(np.int32)))
    predicted = row[1:]
    same = np.flatnonzero(predicted == targets[: len(predicted)])
    found[same] = start + same + 1
    return row, found


def _missing(
    datum: Datum, targets: npt.NDArray[np.int64], found: npt.NDArray[np.int64]
) -> list[tuple[int, ...]]:
    """Cells whose target needs a separate row. Of several targets for a token, those without a weight need none."""
    wanted = (found < 0) & (targets >= 0)
    if not wanted.any():
        return []
    if targets.ndim > 1 and "weights" in datum.inputs:
        wanted &= datum.inputs["weights"] != 0
    return [tuple(int(part) for part in cell) for cell in np.argwhere(wanted)]


def _batch(rows: Sequence[npt.NDArray[np.int32]], mask: npt.NDArray[np.bool_]) -> Batch:
    count, total = len(rows), len(mask)
    return Batch(
        id="tinker",
        policy="tinker",
        version=1,
        lengths=np.array([len(row) for row in rows], np.int32),
        tokens=np.concatenate(rows),
        loss_mask=mask,
        logprobs=np.zeros(total, np.float32),
        versions=np.where(mask, 0, -1).astype(np.int32),
        rewards=np.zeros(count, np.float32),
        group=np.arange(count),
        trajectory=np.arange(count),
        group_size=np.ones(count, np.int32),
        group_mean=np.zeros(count, np.float32),
        group_std=np.zeros(count, np.float32),
    )
