"""Packing rows into the frame of a batch: slices of the received columns, not copied."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import attrgetter

import numpy as np

from astraflow_core.types import BufferedRow, Units, units_of
from astraflow_runtime.dataflow.row_source import NO_ROWS, SourcedRows
from astraflow_runtime.dataflow.rows.rows import Row
from astraflow_wire import sparse
from astraflow_wire.batches import BatchHeader, batch_parts
from astraflow_wire.column_table import ROW_COLUMNS, TOKEN_COLUMNS
from astraflow_wire.frames import Buffer
from astraflow_wire.groups import ReceivedGroup

Run = tuple[ReceivedGroup, int, int]
_ROW_VALUES = [(c.name, c.dtype, attrgetter(c.of_row)) for c in ROW_COLUMNS if c.of_row]
_TOKEN_BYTES = [(column.name, column.raw.itemsize) for column in TOKEN_COLUMNS]
"""A pushed group has the columns of a batch, in their order."""


def _runs(rows: Sequence[Row]) -> list[Run]:
    """(group, first token, end token) of neighbouring rows that lie side by side in one body."""
    spans: list[tuple[ReceivedGroup, int, int]] = []
    received, first, after = None, 0, -1
    for row in rows:
        if row.received is received and row.index == after:
            after += 1
            continue
        if received is not None:
            spans.append((received, first, after))
        received, first, after = row.received, row.index, row.index + 1
    if received is not None:
        spans.append((received, first, after))
    return [(r, int(r.offsets[start]), int(r.offsets[end])) for r, start, end in spans]


def _units(rows: Sequence[Row]) -> Units:
    """Of the rows, out of all that the policy has in their groups."""
    siblings = list({id(row.siblings): row.siblings for row in rows}.values())
    sizes = [len(group.rewards) for group in siblings]
    trajectories = [0, *accumulate(group.trajectories for group in siblings)]
    whole = units_of(
        np.repeat(np.arange(len(siblings)), sizes),
        np.concatenate([group.trajectory for group in siblings])
        + np.repeat(trajectories[:-1], sizes),
        np.concatenate([group.rewards for group in siblings]),
        np.concatenate([group.trained for group in siblings]),
        np.concatenate([group.own for group in siblings]),
    )
    firsts = dict(zip(map(id, siblings), accumulate(sizes, initial=0), strict=False))
    places = [firsts[id(row.siblings)] + row.place for row in rows]
    every = places == list(range(sum(sizes)))
    return whole if every else whole.take(np.array(places))


def pack(
    batch_id: str,
    policy: str,
    version: int,
    temperature: float,
    own: Sequence[Row],
    sourced: SourcedRows = NO_ROWS,
) -> list[bytes | memoryview]:
    """The frame of a batch of the rows ``own`` in their order and of those ``sourced``, in parts. Groups and
    trajectories of the latter have numbers below zero: to this policy they are others than those in which it
    has rows itself."""
    rows = [*own, *sourced.rows]
    runs = _runs(rows)
    any_sparse = any(received.sparse for received, _, _ in runs)
    given_sparse = sparse.joined(map(_sparse, runs)) if any_sparse else sparse.NONE
    header = BatchHeader(
        id=batch_id,
        policy=policy,
        version=version,
        rows=len(rows),
        tokens=sum(end - start for _, start, end in runs),
        temperature=temperature,
        units=True,
        source=sourced.source,
        sparse=list(given_sparse),
    )
    columns: dict[str, Buffer] = {
        **_row_values([row.item for row in rows]),
        **_token_bytes(runs),
        "group": np.array([r.group for r in own] + [-1 - r.group for r in sourced.rows]),
        "trajectory": np.array(
            [r.trajectory for r in own] + [-1 - r.trajectory for r in sourced.rows]
        ),
        "counted_from": np.repeat([version, sourced.version], [len(own), len(sourced.rows)]),
    }
    return batch_parts(header, columns, _units(rows), given_sparse)


def _row_values(items: Sequence[BufferedRow]) -> dict[str, Buffer]:
    return {
        name: np.fromiter(map(value, items), dtype, len(items))
        for name, dtype, value in _ROW_VALUES
    }


def _sparse(run: Run) -> tuple[sparse.Sparse, int]:
    received, start, end = run
    given = {name: values.between(start, end) for name, values in received.sparse.items()}
    return {name: values for name, values in given.items() if len(values.positions)}, end - start


def _token_bytes(runs: Sequence[Run]) -> dict[str, Buffer]:
    return {
        name: [received.columns[column][start * size : end * size] for received, start, end in runs]
        for column, (name, size) in enumerate(_TOKEN_BYTES)
    }
