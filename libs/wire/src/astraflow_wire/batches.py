"""Batches on the wire: one frame from the dataflow to a trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET, Meta, UnsetType

from astraflow_core.errors import WireError
from astraflow_core.types import Batch, GroupTurns, NamedRewards, Units
from astraflow_core.types.named_rewards import NAMED_REWARD_COLUMNS
from astraflow_core.types.turns import TURN_COLUMNS
from astraflow_core.types.units import UNIT_COLUMNS
from astraflow_wire import sparse
from astraflow_wire.column_table import SPARSE_COLUMNS, batch_columns
from astraflow_wire.experts.routing import Piece, RoutingShape
from astraflow_wire.frames import Buffer, Frame, decode_header, encode_frame, frame_parts
from astraflow_wire.images import table as image_table
from astraflow_wire.images.table import Bytes, ImageTable
from astraflow_wire.limits import MAX_SPARSE, Count, Name, Number, RewardNames, Version


class BatchHeader(
    msgspec.Struct, frozen=True, tag="batch", kw_only=True, forbid_unknown_fields=True
):
    """Header of a batch of ``rows`` sequences with ``tokens`` tokens in all, sampled at ``temperature``, whose columns
    are the buffers; with ``units`` those of units too, and one more if rows of the policy ``source`` are among them.
    ``turns``: elements in each column of turns, which follow; null: there are none of these columns.
    ``named_rewards``: the names of rewards whose columns follow, none of them if there are no names.
    ``sparse``: names of the sparse columns that follow, in the order of their table. ``routing``, if the experts of tokens
    were recorded: layers with experts, experts of a token in each, and bytes of an id; the ids of all tokens are the last
    buffer but that of images, all bits set where none were recorded. ``images``, if rows have some: their places among the
    tokens and, in the last buffer, each image file once.
    """

    id: Name
    policy: Name
    version: Version
    rows: Count
    tokens: Count
    temperature: Number
    units: bool = False
    source: str = ""
    turns: Count | None = None
    named_rewards: RewardNames = []
    sparse: Annotated[list[Name], Meta(max_length=MAX_SPARSE)] = []
    routing: RoutingShape | UnsetType = UNSET
    images: ImageTable | UnsetType = UNSET


class NoBatch(
    msgspec.Struct, frozen=True, tag="no_batch", kw_only=True, forbid_unknown_fields=True
):
    """The answer when no batch is served: ``ended`` if there will be none, with the reason and the best
    version that the evaluations found (-1: none); else ask again."""

    ended: bool
    reason: str
    best_version: Version = -1


def encode_batch(batch: Batch) -> bytes:
    """A batch as the dataflow serves it (without the columns that a trainer computes)."""
    dense = {c.name: getattr(batch, c.name) for c in SPARSE_COLUMNS}
    given_sparse = sparse.of_columns(
        {n: values for n, values in dense.items() if values is not None}
    )
    table, files = image_table.encode(batch.images)
    header = BatchHeader(
        id=batch.id,
        policy=batch.policy,
        version=batch.version,
        rows=len(batch),
        tokens=len(batch.tokens),
        temperature=batch.temperature,
        units=batch.units is not None,
        source=batch.source,
        turns=None if batch.turns is None else len(batch.turns.last),
        named_rewards=[] if batch.named_rewards is None else list(batch.named_rewards.names),
        sparse=list(given_sparse),
        routing=UNSET if batch.routed_experts is None else RoutingShape.of(batch.routed_experts),
        images=table,
    )
    routed = [] if batch.routed_experts is None else [[batch.routed_experts]]
    columns = batch_columns(False, bool(batch.source))
    given = {column.name: getattr(batch, column.name) for column in columns}
    named = batch.named_rewards
    return b"".join(
        batch_parts(header, given, batch.units, batch.turns, given_sparse, named, [*routed, *files])
    )


def batch_parts(
    header: BatchHeader,
    given: Mapping[str, Buffer],
    units: Units | None = None,
    turns: GroupTurns | None = None,
    given_sparse: sparse.Sparse = sparse.NONE,
    named: NamedRewards | None = None,
    behind: Sequence[Sequence[Piece | Bytes]] = (),
) -> list[bytes | memoryview]:
    """The parts of the frame of a batch, from its columns: an array of each or, of those of its tokens, its bytes in
    pieces; no token is copied. The loss mask may be uint8. ``header.units`` says whether there are ``units``,
    ``header.turns`` how many ``turns``, ``header.sparse`` names the columns of ``given_sparse`` and
    ``header.named_rewards`` those of ``named``. ``behind``: the pieces of the last buffers, if ``header.routing`` says the
    shape of one, and ``header.images`` what is in one."""
    if units is not None:
        given = {**given, **{column.name: getattr(units, column.name) for column in UNIT_COLUMNS}}
    buffers: list[Buffer] = []
    for column in batch_columns(header.units, bool(header.source)):
        values = given[column.name]
        if column.per == "row":
            values = np.asarray(values, column.dtype)
        buffers.append(values)
    if turns is not None:
        buffers += [getattr(turns, column.name) for column in TURN_COLUMNS]
    if named is not None and named.names:
        buffers += [getattr(named, column.name).ravel() for column in NAMED_REWARD_COLUMNS]
    return frame_parts(header, [*buffers, *sparse.buffers(given_sparse), *behind])


def encode_no_batch(ended: bool, reason: str, best_version: int = -1) -> bytes:
    """The answer when there is no batch, as a frame."""
    return encode_frame(NoBatch(ended=ended, reason=reason, best_version=best_version), [])


def _check(columns: Mapping[str, npt.NDArray[Any]], tokens: int) -> None:
    """Check the invariants that every index into a batch relies on."""
    lengths, mask = columns["lengths"], columns["loss_mask"]
    if len(lengths) and lengths.min() < 1:
        raise WireError(f"row {int(lengths.argmin())} of the batch has {lengths.min()} tokens")
    if (total := int(lengths.sum(dtype=np.int64))) != tokens:
        raise WireError(f"the rows of the batch have {total} tokens, its columns {tokens}")
    if len(mask) and (most := mask.view(np.uint8).max()) > 1:
        raise WireError(f"the loss mask of the batch holds {most}, expected 0 or 1")


def decode_batch(body: bytes) -> Batch | NoBatch:
    """The batch in a received frame; arrays are read-only views into ``body``. Raises
    :class:`WireError`.
    """
    frame = Frame(body)
    header = decode_header(frame, BatchHeader | NoBatch)  # type: ignore[arg-type]
    if isinstance(header, NoBatch):
        frame.check_count(0)
        return header
    expected = batch_columns(header.units, bool(header.source))
    turns = None
    first = len(expected)
    of_turns = 0 if header.turns is None else len(TURN_COLUMNS)
    of_names = len(NAMED_REWARD_COLUMNS) if header.named_rewards else 0
    behind = int(header.routing is not UNSET) + int(header.images is not UNSET)
    frame.check_count(first + of_turns + of_names + 2 * len(header.sparse) + behind)
    if header.turns is not None:
        turns = GroupTurns(
            **{
                column.name: frame.array(index, column.dtype, header.turns)
                for index, column in enumerate(TURN_COLUMNS, first)
            }
        )
        first += of_turns
    named = None
    if header.named_rewards:
        shape = (len(header.named_rewards), header.rows)
        arrays = (
            frame.array(index, column.dtype, shape[0] * shape[1]).reshape(shape)
            for index, column in enumerate(NAMED_REWARD_COLUMNS, first)
        )
        named = NamedRewards(tuple(header.named_rewards), *arrays)
        first += of_names
    given = sparse.read(frame, first, header.sparse, header.tokens, behind)
    sizes = {"row": header.rows, "token": header.tokens}
    columns: dict[str, Any] = {
        column.name: frame.array(index, column.dtype, sizes[column.per])
        for index, column in enumerate(expected)
    }
    _check(columns, header.tokens)
    if header.routing is not UNSET:
        last, size = len(frame.buffers) - behind, header.tokens * header.routing.bytes_per_token
        columns["routed_experts"] = header.routing.array(frame.array(last, np.uint8, size))
    columns |= {name: values.dense(header.tokens) for name, values in given.items()}
    units = {c.name: columns.pop(c.name) for c in UNIT_COLUMNS} if header.units else None
    return Batch(
        id=header.id,
        policy=header.policy,
        version=header.version,
        temperature=header.temperature,
        source=header.source,
        units=None if units is None else Units(**units),
        turns=turns,
        named_rewards=named,
        images=image_table.decode(
            header.images, frame.buffers, np.cumsum(columns["lengths"], dtype=np.int64).tolist()
        ),
        **columns,
    )
