"""The sequences of a request as a batch of a trainer, and its results back in the form of the request.

A client names a target for every token of the input. Where that is the next token, one row predicts all targets of a sequence.
Every other target gets a row of its own: the tokens before it and then the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
        """What the data say of each target under ``name``, at its place: float32 ``[N]``, 0 elsewhere."""
        found = np.zeros(len(self.batch.tokens), np.float32)
        for datum, places in zip(data, self.places, strict=True):
            there = places >= 0
            found[places[there]] = datum.inputs[name][there]
        return found

    def back(self, per_token: Floats) -> list[Floats]:
        """Values of the batch's tokens in the shapes of the targets, 0 where no target was asked for."""
        return [
            np.where(places >= 0, per_token[np.maximum(places, 0)], np.float32(0))
            for places in self.places
        ]

    def masked(self, mask: npt.NDArray[np.bool_]) -> Rows:
        """The same with another loss mask, bool ``[N]``."""
        return replace(self, batch=replace(self.batch, loss_mask=mask & self.batch.loss_mask))


def rows_of(data: Sequence[Datum], vocabulary: int, positions: int) -> Rows:
    """The batch; :class:`Refused` if a datum's tensors do not fit each other, a token is none of the model, or a row is
    longer than ``positions``."""
    rows: list[npt.NDArray[np.int32]] = []
    masks: list[npt.NDArray[np.bool_]] = []
    places: list[npt.NDArray[np.int64]] = []
    own: list[tuple[int, tuple[int, ...]]] = []
    start = total = 0
    for number, datum in enumerate(data):
        targets = _targets(datum, number, vocabulary, positions)
        row, found = _main_row(datum, targets, start)
        rows.append(row)
        masks.append(np.zeros(len(row), np.bool_))
        masks[-1][found[found >= 0] - start] = True
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
        masks.append(np.zeros(len(rows[-1]), np.bool_))
        masks[-1][-1] = True
        start += len(rows[-1])
        places[number][cell] = start - 1
        alone.append(start - 1)
    batch = _batch(rows, np.concatenate(masks))
    return Rows(batch, places, np.array(alone, np.int64))


def _targets(datum: Datum, number: int, vocabulary: int, positions: int) -> npt.NDArray[np.int64]:
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
    ids = np.append(targets.reshape(-1), datum.tokens)
    if ids.min() < -1 or ids.max() >= vocabulary or datum.tokens.min() < 0:
        raise Refused(400, f"{where} has a token outside the vocabulary of {vocabulary}")
    return targets.astype(np.int64)


def _main_row(
    datum: Datum, targets: npt.NDArray[np.int64], start: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """The input with its last target, and where in the batch it predicts targets."""
    found = np.full(targets.shape, -1, np.int64)
    if targets.ndim > 1:
        return datum.tokens, found
    last = targets[-1:] if targets[-1] >= 0 else targets[:0]
    row = np.append(datum.tokens, last.astype(np.int32))
    predicted = row[1:]
    same = np.flatnonzero(predicted == targets[: len(predicted)])
    found[same] = start + same + 1
    return row, found


def _missing(
    datum: Datum, targets: npt.NDArray[np.int64], found: npt.NDArray[np.int64]
) -> list[tuple[int, ...]]:
    """Cells whose target needs a row of its own. Of several targets for a token, those without a weight need none."""
    wanted = (found < 0) & (targets >= 0)
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
