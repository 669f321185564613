"""A batch of ours as that of the public protocol: a rectangle, padded with zeros on the right."""

from __future__ import annotations

from typing import Any

import numpy as np

from astraflow_core.types import Batch

EPS = 1e-5
"""Added to the standard deviation of a group, as the public trainer does."""


def public_batch(batch: Batch) -> dict[str, Any]:
    """``input_ids``, ``loss_mask``, ``versions`` int32, ``logprobs`` float32 and ``attention_mask`` bool ``[R, L]``; ``rewards``,
    ``group_reward_mean``, ``group_reward_std``, ``normalized_rewards`` float32 and ``group_id`` int64 ``[R]``; ``prompt_id``: a text
    for each row, equal for rows of one group."""
    lengths = batch.lengths.astype(np.int64)
    attended = np.arange(int(lengths.max(initial=0))) < lengths[:, None]

    def padded(column: Any, dtype: type[np.generic]) -> Any:
        found = np.zeros(attended.shape, dtype)
        found[attended] = column
        return found

    std = np.where(batch.group_size > 1, batch.group_std, 1.0).astype(np.float32)
    return {
        "input_ids": padded(batch.tokens, np.int32),
        "loss_mask": padded(batch.loss_mask, np.int32),
        "logprobs": padded(batch.logprobs, np.float32),
        "versions": padded(batch.versions, np.int32),
        "attention_mask": attended,
        "rewards": batch.rewards.astype(np.float32),
        "group_id": batch.group.astype(np.int64),
        "group_reward_mean": batch.group_mean.astype(np.float32),
        "group_reward_std": std,
        "normalized_rewards": ((batch.rewards - batch.group_mean) / (std + EPS)).astype(np.float32),
        "prompt_id": [str(group) for group in batch.group],
    }
