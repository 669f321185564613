"""Packing rows into the frame of a batch: slices of the received columns, not copied."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from astraflow_core.dataflow.rows import GroupRewards, Row
from astraflow_core.types import Units, units_of
from astraflow_core.wire.batches import TOKEN_COLUMNS, BatchHeader, batch_parts
from astraflow_core.wire.groups import ReceivedGroup


def _runs(rows: Sequence[Row]) -> list[tuple[ReceivedGroup, int, int]]:
    """(group, first token, end token) of neighbouring rows that lie side by side in one body."""
    runs: list[tuple[ReceivedGroup, int, int]] = []
    previous: Row | None = None
    for row in rows:
        start, end = row.received.offsets[row.index], row.received.offsets[row.index + 1]
        follows = (
            previous is not None
            and previous.received is row.received
            and previous.index + 1 == row.index
        )
        if follows:
            runs[-1] = (row.received, runs[-1][1], int(end))
        else:
            runs.append((row.received, int(start), int(end)))
        previous = row
    return runs


def _units(rows: Sequence[Row]) -> Units:
    """Of the rows, out of all that the policy has in their groups."""
    number: dict[int, int] = {}
    siblings: list[GroupRewards] = []
    for row in rows:
        if id(row.siblings) not in number:
            number[id(row.siblings)] = len(siblings)
            siblings.append(row.siblings)
    sizes = np.array([len(group.rewards) for group in siblings])
    trajectories = np.array([group.trajectories for group in siblings])
    before = np.cumsum(trajectories) - trajectories
    whole = units_of(
        np.repeat(np.arange(len(siblings)), sizes),
        np.concatenate([group.trajectory for group in siblings]) + np.repeat(before, sizes),
        np.concatenate([group.rewards for group in siblings]),
        np.concatenate([group.trained for group in siblings]),
    )
    firsts = np.cumsum(sizes) - sizes
    own = [number[id(row.siblings)] for row in rows]
    return whole.take(firsts[own] + [row.place for row in rows])


def pack(
    batch_id: str, policy: str, version: int, temperature: float, rows: Sequence[Row]
) -> list[bytes | memoryview]:
    """The frame of a batch of ``rows`` in their order, in parts."""
    runs, items = _runs(rows), [row.item for row in rows]
    header = BatchHeader(
        id=batch_id,
        policy=policy,
        version=version,
        rows=len(rows),
        tokens=sum(end - start for _, start, end in runs),
        temperature=temperature,
        units=True,
    )
    per_row = {
        "lengths": np.array([item.length for item in items]),
        "rewards": np.array([item.reward for item in items]),
        "group": np.array([row.group for row in rows]),
        "trajectory": np.array([row.trajectory for row in rows]),
        "group_size": np.array([item.group_size for item in items]),
        "group_mean": np.array([item.group_mean for item in items]),
        "group_std": np.array([item.group_std for item in items]),
    }
    per_token = {
        name: [getattr(received, name)[start:end] for received, start, end in runs]
        for name, _ in TOKEN_COLUMNS
    }
    return batch_parts(header, per_row, per_token, _units(rows))
