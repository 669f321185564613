"""Probe rows: a prompt and what an engine sampled after it, and the same as a batch for a trainer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from astraflow_core.types import Batch
from astraflow_core.types.columns import zeros
from astraflow_wire.column_table import batch_columns

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class MeasuredRow:
    """``prompt`` int32 ``[P]``; sampled ``tokens`` int32 ``[T]``, ``logprobs`` float32 ``[T]`` as the engine
    reported them, ``versions`` int32 ``[T]``."""

    prompt: npt.NDArray[np.int32]
    tokens: npt.NDArray[np.int32]
    logprobs: Floats
    versions: npt.NDArray[np.int32]

    @property
    def whole(self) -> npt.NDArray[np.int32]:
        """Prompt and sampled tokens, int32 ``[P + T]``."""
        return np.concatenate([self.prompt, self.tokens])


def as_batch(
    policy: str,
    tokens: npt.NDArray[np.int32],
    lengths: npt.NDArray[np.int32],
    prompts: npt.NDArray[np.int32],
    temperature: float,
) -> Batch:
    """Rows of ``lengths`` int32 ``[R]``, packed in ``tokens`` int32 ``[N]``, as a batch in which all but the
    first ``prompts[i]`` tokens of row ``i`` are trained. Only for log-probs: there are no
    rewards."""
    count, total = len(lengths), len(tokens)
    starts = np.concatenate([[0], np.cumsum(lengths[:-1], dtype=np.int64)])
    position = np.arange(total) - np.repeat(starts, lengths)
    columns = zeros(batch_columns(False, False), count, total) | {
        "lengths": lengths.astype(np.int32),
        "tokens": tokens.astype(np.int32),
        "loss_mask": position >= np.repeat(prompts, lengths),
        "group": np.arange(count, dtype=np.int64),
        "trajectory": np.arange(count, dtype=np.int64),
        "group_size": np.ones(count, np.int32),
    }
    return Batch(id="probe", policy=policy, version=0, temperature=temperature, **columns)


def sampled_parts(rows: Sequence[MeasuredRow], packed: Floats) -> list[Floats]:
    """Of values float32 ``[N]`` for every token of the packed rows, those of the sampled tokens, per row."""
    parts, start = [], 0
    for row in rows:
        end = start + len(row.prompt) + len(row.tokens)
        parts.append(packed[start + len(row.prompt) : end])
        start = end
    return parts
