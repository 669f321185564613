"""Batches on the wire: one frame from the dataflow to a trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from astraflow_core.types import Batch, Units
from astraflow_core.wire.frames import Buffer, Frame, decode_header, encode_frame, frame_parts


class BatchHeader(msgspec.Struct, frozen=True, tag="batch", kw_only=True):
    """Header of a batch; the buffers are the columns of :data:`ROW_COLUMNS`, of :data:`TOKEN_COLUMNS`, with
    ``units`` of :data:`UNIT_COLUMNS`, and :data:`COUNTED_FROM` if rows of the policy ``source`` are among them."""

    id: str
    policy: str
    version: int
    rows: int
    tokens: int
    temperature: float
    units: bool = False
    source: str = ""


class NoBatch(msgspec.Struct, frozen=True, tag="no_batch", kw_only=True):
    """The answer when no batch is served: ``ended`` if there will be none, with the reason and the best
    version that the evaluations found (-1: none); else ask again."""

    ended: bool
    reason: str
    best_version: int = -1


ROW_COLUMNS: tuple[tuple[str, Any], ...] = (
    ("lengths", np.int32),
    ("rewards", np.float32),
    ("group", np.int64),
    ("trajectory", np.int64),
    ("group_size", np.int32),
    ("group_mean", np.float32),
    ("group_std", np.float32),
)
TOKEN_COLUMNS: tuple[tuple[str, Any], ...] = (
    ("tokens", np.int32),
    ("loss_mask", np.bool_),
    ("logprobs", np.float32),
    ("versions", np.int32),
)
UNIT_COLUMNS: tuple[tuple[str, Any], ...] = (
    ("turn", np.int32),
    ("turns", np.int32),
    ("trajectory_reward", np.float32),
    ("trajectories", np.int32),
    ("trajectory_mean", np.float32),
    ("trajectory_std", np.float32),
    ("trained_tokens", np.int32),
    ("token_mean", np.float32),
    ("token_std", np.float32),
)

COUNTED_FROM = ("counted_from", np.int32)


def encode_batch(batch: Batch) -> bytes:
    """A batch as the dataflow serves it (what a trainer fills in later is not sent)."""
    header = BatchHeader(
        id=batch.id,
        policy=batch.policy,
        version=batch.version,
        rows=len(batch),
        tokens=len(batch.tokens),
        temperature=batch.temperature,
        units=batch.units is not None,
        source=batch.source,
    )
    rows = {name: getattr(batch, name) for name, _ in (*ROW_COLUMNS, COUNTED_FROM)}
    tokens = {name: getattr(batch, name) for name, _ in TOKEN_COLUMNS}
    return b"".join(batch_parts(header, rows, tokens, batch.units))


def batch_parts(
    header: BatchHeader,
    rows: Mapping[str, npt.NDArray[Any]],
    tokens: Mapping[str, Buffer],
    units: Units | None = None,
) -> list[bytes | memoryview]:
    """The parts of the frame of a batch, from the columns of its rows and, for each of those of its tokens,
    an array or its bytes in pieces; no token is copied. The loss mask may be uint8. ``header.units`` says
    whether there are ``units``."""
    given = () if units is None else UNIT_COLUMNS
    last, dtype_of_last = COUNTED_FROM
    lent = [rows[last].astype(dtype_of_last, copy=False)] if header.source else []
    return frame_parts(
        header,
        [rows[name].astype(dtype, copy=False) for name, dtype in ROW_COLUMNS]
        + [tokens[name] for name, _ in TOKEN_COLUMNS]
        + [getattr(units, name).astype(dtype, copy=False) for name, dtype in given]
        + lent,
    )


def encode_no_batch(ended: bool, reason: str, best_version: int = -1) -> bytes:
    """The answer when there is no batch, as a frame."""
    return encode_frame(NoBatch(ended=ended, reason=reason, best_version=best_version), [])


def decode_batch(body: bytes) -> Batch | NoBatch:
    """What a trainer received; arrays are read-only views into ``body``."""
    frame = Frame(body)
    header = decode_header(frame, BatchHeader | NoBatch)  # type: ignore[arg-type]
    if isinstance(header, NoBatch):
        return header
    columns: dict[str, Any] = {}
    for index, (name, dtype) in enumerate(ROW_COLUMNS + TOKEN_COLUMNS):
        columns[name] = frame.array(
            index, dtype, header.rows if index < len(ROW_COLUMNS) else header.tokens
        )
    start = len(columns)
    units = {
        name: frame.array(start + index, dtype, header.rows)
        for index, (name, dtype) in enumerate(UNIT_COLUMNS if header.units else ())
    }
    if header.source:
        name, dtype = COUNTED_FROM
        columns[name] = frame.array(start + len(units), dtype, header.rows)
    return Batch(
        id=header.id,
        policy=header.policy,
        version=header.version,
        temperature=header.temperature,
        source=header.source,
        units=Units(**units) if header.units else None,
        **columns,
    )
