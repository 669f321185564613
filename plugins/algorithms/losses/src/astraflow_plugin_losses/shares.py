"""Aggregation: the share of each token in the mean over a mini-batch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from astraflow_core.types import Batch
from astraflow_plugin_losses.config import Aggregation


def shares(
    batch: Batch,
    aggregation: Aggregation,
    max_tokens: int | None = None,
    mask: npt.NDArray[np.bool_] | None = None,
) -> npt.NDArray[np.float32]:
    """float32 ``[N]``, 0 outside ``mask`` (default: the loss mask): a sum weighted by these is the mean.

    Names are those of verl (``token_mean``, ``seq_mean_…``), TRL (``…_all_rows``: ``grpo`` and ``dr_grpo``
    there) and SkyRL (``prompt_mean``). ``max_tokens`` is the constant length of the last two ``case``s.
    """
    mask = batch.loss_mask if mask is None else mask
    row, length = batch.row_of_token, max_tokens or 1
    tokens = np.bincount(row, weights=mask, minlength=len(batch)).astype(np.float64)
    filled = max(1, int(np.count_nonzero(tokens)))
    everyone = max(1, len(batch))
    per_row: npt.NDArray[np.float64]
    match aggregation:
        case "token_mean":
            per_row = np.full(len(batch), 1 / max(1.0, float(tokens.sum())))
        case "prompt_mean":
            _, group = np.unique(batch.group, return_inverse=True)
            of_group = np.bincount(group, weights=tokens)
            per_row = 1 / (np.maximum(of_group, 1)[group] * max(1, np.count_nonzero(of_group)))
        case "seq_mean_token_mean":
            per_row = 1 / (np.maximum(tokens, 1) * filled)
        case "seq_mean_token_mean_all_rows":
            per_row = 1 / (np.maximum(tokens, 1) * everyone)
        case "seq_mean_token_sum":
            per_row = np.full(len(batch), 1 / filled)
        case "seq_mean_token_sum_norm":
            per_row = np.full(len(batch), 1 / (filled * length))
        case "const_norm_all_rows":
            per_row = np.full(len(batch), 1 / (everyone * length))
    return np.where(mask, per_row[row], 0.0).astype(np.float32)
