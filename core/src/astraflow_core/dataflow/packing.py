"""Packing rows into the frame of a batch: slices of the received columns, not copied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from astraflow_core.dataflow.rows import Row
from astraflow_core.types import Units, units_of
from astraflow_core.wire.batches import ROW_COLUMNS, TOKEN_COLUMNS, BatchHeader, batch_parts
from astraflow_core.wire.groups import ReceivedGroup


def _runs(rows: Sequence[Row]) -> list[tuple[ReceivedGroup, int, int]]:
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
    )
    firsts = dict(zip(map(id, siblings), accumulate(sizes, initial=0), strict=False))
    places = [firsts[id(row.siblings)] + row.place for row in rows]
    every = places == list(range(sum(sizes)))
    return whole if every else whole.take(np.array(places))


@dataclass(frozen=True, slots=True)
class Loan:
    """Rows of another policy, ``source``, whose next batch would have updated ``version``."""

    source: str = ""
    version: int = -1
    rows: tuple[Row, ...] = ()


NOTHING_LENT = Loan()
_TOKEN_BYTES = {name: np.dtype(dtype).itemsize for name, dtype in TOKEN_COLUMNS}
"""A pushed group has the columns of a batch, in their order."""


def pack(
    batch_id: str,
    policy: str,
    version: int,
    temperature: float,
    own: Sequence[Row],
    loan: Loan = NOTHING_LENT,
) -> list[bytes | memoryview]:
    """The frame of a batch of the rows ``own`` in their order and of those of the ``loan``, in parts. Groups and
    trajectories of the latter have numbers below zero: to this policy they are others than those in which it
    has rows itself."""
    rows = [*own, *loan.rows]
    runs, items = _runs(rows), [row.item for row in rows]
    header = BatchHeader(
        id=batch_id,
        policy=policy,
        version=version,
        rows=len(rows),
        tokens=sum(end - start for _, start, end in runs),
        temperature=temperature,
        units=True,
        source=loan.source,
    )
    values: dict[str, list[int] | list[float]] = {
        "lengths": [item.length for item in items],
        "rewards": [item.reward for item in items],
        "group": [row.group for row in own] + [-1 - row.group for row in loan.rows],
        "trajectory": [row.trajectory for row in own] + [-1 - row.trajectory for row in loan.rows],
        "group_size": [item.group_size for item in items],
        "group_mean": [item.group_mean for item in items],
        "group_std": [item.group_std for item in items],
    }
    per_row = {name: np.array(values[name], dtype) for name, dtype in ROW_COLUMNS}
    if loan.source:
        per_row["counted_from"] = np.repeat([version, loan.version], [len(own), len(loan.rows)])
    per_token = {
        name: [received.columns[column][start * size : end * size] for received, start, end in runs]
        for column, (name, size) in enumerate(_TOKEN_BYTES.items())
    }
    return batch_parts(header, per_row, per_token, _units(rows))
