"""Packing rows into the frame of a batch: slices of the received columns, not copied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from astraflow_core.dataflow.rows import GroupRewards, Row
from astraflow_core.types import Units, units_of
from astraflow_core.wire.batches import TOKEN_COLUMNS, BatchHeader, batch_parts
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
    number: dict[int, int] = {}
    siblings: list[GroupRewards] = []
    own: list[int] = []
    for row in rows:
        nth = number.setdefault(id(row.siblings), len(siblings))
        if nth == len(siblings):
            siblings.append(row.siblings)
        own.append(nth)
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
    return whole.take(firsts[own] + [row.place for row in rows])


@dataclass(frozen=True, slots=True)
class Loan:
    """Rows of another policy, ``source``, whose next batch would have updated ``version``."""

    source: str = ""
    version: int = -1
    rows: tuple[Row, ...] = ()


NOTHING_LENT = Loan()


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
    lent = np.arange(len(rows)) >= len(own)
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
    per_row = {
        "lengths": np.array([item.length for item in items]),
        "rewards": np.array([item.reward for item in items]),
        "group": _numbers([row.group for row in rows], lent),
        "trajectory": _numbers([row.trajectory for row in rows], lent),
        "group_size": np.array([item.group_size for item in items]),
        "group_mean": np.array([item.group_mean for item in items]),
        "group_std": np.array([item.group_std for item in items]),
    }
    per_token = {
        name: [getattr(received, name)[start:end] for received, start, end in runs]
        for name, _ in TOKEN_COLUMNS
    }
    if loan.source:
        per_row["counted_from"] = np.where(lent, loan.version, version)
    return batch_parts(header, per_row, per_token, _units(rows))


def _numbers(given: list[int], lent: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    numbers = np.array(given, dtype=np.int64)
    return np.where(lent, -1 - numbers, numbers)
