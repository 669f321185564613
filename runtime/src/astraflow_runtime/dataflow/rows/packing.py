"""Packing rows into the frame of a batch: slices of the received columns, without copies."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, repeat
from operator import attrgetter

import numpy as np

from astraflow_core.types import BufferedRow, GroupTurns, Units
from astraflow_runtime.dataflow.row_source import NO_ROWS, SourcedRows
from astraflow_runtime.dataflow.rows.named_rewards import named_rewards_of
from astraflow_runtime.dataflow.rows.rows import Row
from astraflow_runtime.dataflow.rows.statistics import units_of
from astraflow_runtime.dataflow.rows.turns import WholeGroups, turns_of
from astraflow_wire import sparse
from astraflow_wire.batches import BatchHeader, batch_parts
from astraflow_wire.column_table import ROW_COLUMNS, TOKEN_COLUMNS
from astraflow_wire.experts import routing
from astraflow_wire.frames import Buffer
from astraflow_wire.groups import ReceivedGroup
from astraflow_wire.images import table as image_table

Run = tuple[ReceivedGroup, int, int]
_ROW_VALUES = [(c.name, c.dtype, attrgetter(c.of_row)) for c in ROW_COLUMNS if c.of_row]
_TOKEN_BYTES = [(column.name, column.raw.itemsize) for column in TOKEN_COLUMNS]
"""A pushed group has the columns of a batch, in their order."""


def _runs(rows: Sequence[Row]) -> list[Run]:
    """(group, first token, end token) of neighbouring rows that are adjacent in one body."""
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
    """The units of the rows, computed over all rows of the policy in their groups."""
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


def _turns(own: Sequence[Row], sourced: Sequence[Row]) -> GroupTurns:
    """All sequences of the policy in the groups of the rows, with the numbers that :func:`pack`
    assigns.
    """
    groups = {id(row.siblings): (row, 1) for row in own}
    groups |= {id(row.siblings): (row, -1) for row in sourced}
    rows, signs = zip(*groups.values(), strict=True)
    of = [row.siblings for row in rows]
    sizes = [len(group.index) for group in of]
    # All groups are arranged at once: NumPy takes as long for many as for one.
    place = np.repeat(np.arange(len(of)), sizes)
    trajectory = np.concatenate([group.trajectory for group in of])
    order = np.lexsort((trajectory, place))
    offsets = [row.received.offsets for row in rows]
    firsts = list(accumulate(map(len, offsets), initial=0))
    bounds, index = np.concatenate(offsets), np.concatenate([group.index for group in of])[order]
    at = index + np.repeat(firsts[:-1], sizes)
    starts, ends = bounds[at], bounds[at + 1]
    shifts = [row.trajectory - int(row.siblings.trajectory[row.place]) for row in rows]
    numbers = trajectory[order] + np.repeat(shifts, sizes)
    group = np.repeat([row.group for row in rows], sizes)
    sign = np.repeat(signs, sizes)
    runs = _whole_runs(rows, sizes, starts.tolist(), ends.tolist())
    masks = [received.loss_mask[start:end] for received, start, end in runs]
    whole = WholeGroups(
        loss_mask=np.concatenate(masks).view(np.bool_),
        given=_all_sparse(runs),
        lengths=ends - starts,
        group=np.where(sign < 0, -1 - group, group),
        trajectory=np.where(sign < 0, -1 - numbers, numbers),
        rewards=np.concatenate([group.rewards for group in of])[order],
        own=np.concatenate([group.own for group in of])[order],
    )
    return turns_of(whole)


def _whole_runs(
    rows: Sequence[Row], sizes: Sequence[int], starts: list[int], ends: list[int]
) -> list[Run]:
    """The tokens of all sequences of some groups, ``sizes`` of them in that of each of ``rows``: one run for a group whose
    sequences follow each other in its body."""
    runs: list[Run] = []
    for row, first, after in zip(rows, [0, *accumulate(sizes)], accumulate(sizes), strict=False):
        begin, end = starts[first:after], ends[first:after]
        if begin[1:] == end[:-1]:
            runs.append((row.received, begin[0], end[-1]))
        else:
            runs += zip(repeat(row.received), begin, end, strict=False)
    return runs


def pack(
    batch_id: str,
    policy: str,
    version: int,
    temperature: float,
    own: Sequence[Row],
    sourced: SourcedRows = NO_ROWS,
    names: Sequence[str] = (),
) -> list[bytes | memoryview]:
    """The frame of a batch of the rows ``own`` in their order and of those ``sourced``, in parts.
    Groups and trajectories of the latter have negative numbers, so that they differ from those in
    which the policy has rows itself. ``names``: of the rewards that the batch is to have by name;
    :class:`UserError` if an episode has none of a name.
    """
    rows = [*own, *sourced.rows]
    runs = _runs(rows)
    given_sparse = _all_sparse(runs)
    turns = _turns(own, sourced.rows)
    shape, routed = routing.of_runs(policy, runs)
    table, files = image_table.encode(
        image_table.of_runs((group.images, start, end) for group, start, end in runs)
    )
    header = BatchHeader(
        id=batch_id,
        policy=policy,
        version=version,
        rows=len(rows),
        tokens=sum(end - start for _, start, end in runs),
        temperature=temperature,
        units=True,
        source=sourced.source,
        turns=len(turns.last),
        named_rewards=list(names),
        sparse=list(given_sparse),
        routing=shape,
        images=table,
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
    named = named_rewards_of(rows, names) if names else None
    return batch_parts(header, columns, _units(rows), turns, given_sparse, named, [*routed, *files])


def _row_values(items: Sequence[BufferedRow]) -> dict[str, Buffer]:
    return {
        name: np.fromiter(map(value, items), dtype, len(items))
        for name, dtype, value in _ROW_VALUES
    }


def _all_sparse(runs: Sequence[Run]) -> sparse.Sparse:
    some = any(received.sparse for received, _, _ in runs)
    return sparse.joined(map(_sparse, runs)) if some else sparse.NONE


def _sparse(run: Run) -> tuple[sparse.Sparse, int]:
    received, start, end = run
    given = {name: values.between(start, end) for name, values in received.sparse.items()}
    return {name: values for name, values in given.items() if len(values.positions)}, end - start


def _token_bytes(runs: Sequence[Run]) -> dict[str, Buffer]:
    return {
        name: [received.columns[column][start * size : end * size] for received, start, end in runs]
        for column, (name, size) in enumerate(_TOKEN_BYTES)
    }
