"""Packing rows into the frame of a batch: slices of the received columns, concatenated once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from astraflow_core.dataflow.rows import Row
from astraflow_core.types import Batch
from astraflow_core.wire.batches import encode_batch
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


def pack(
    batch_id: str, policy: str, version: int, temperature: float, rows: Sequence[Row]
) -> bytes:
    """The encoded batch of ``rows`` in their order."""
    runs = _runs(rows)

    def column(name: str) -> npt.NDArray[Any]:
        return np.concatenate([getattr(received, name)[start:end] for received, start, end in runs])

    items = [row.item for row in rows]
    return encode_batch(
        Batch(
            id=batch_id,
            policy=policy,
            version=version,
            temperature=temperature,
            lengths=np.array([item.length for item in items], dtype=np.int32),
            tokens=column("tokens"),
            loss_mask=column("loss_mask").view(np.bool_),
            logprobs=column("logprobs"),
            versions=column("versions"),
            rewards=np.array([item.reward for item in items], dtype=np.float32),
            group=np.array([row.group for row in rows], dtype=np.int64),
            trajectory=np.array([row.trajectory for row in rows], dtype=np.int64),
            group_size=np.array([item.group_size for item in items], dtype=np.int32),
            group_mean=np.array([item.group_mean for item in items], dtype=np.float32),
            group_std=np.array([item.group_std for item in items], dtype=np.float32),
        )
    )
