"""Returns and advantages of tokens from rewards of tokens: float64 NumPy on packed rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from astraflow_core.types import Batch
from astraflow_plugin_losses.normalization import Floats, tokens_per_row


def outcome_rewards(batch: Batch, outcome: npt.NDArray[np.floating]) -> Floats:
    """Each row's outcome (``[R]``) at its last trained token, 0 elsewhere: float64 ``[N]``."""
    rewards = np.zeros(len(batch.tokens))
    trained = np.flatnonzero(batch.loss_mask)
    last = np.append(np.diff(batch.row_of_token[trained]) > 0, True)[: len(trained)]
    ends = trained[last]
    rewards[ends] = outcome[batch.row_of_token[ends]]
    return rewards


def returns_to_go(batch: Batch, rewards: Floats, gamma: float = 1.0) -> Floats:
    """``G_t = r_t + gamma · G_next`` over the trained tokens of each row, 0 elsewhere: float64 ``[N]``.

    Tokens outside the loss mask are carried over and not discounted (verl 0.9.1).
    """
    return gae(batch, rewards, np.zeros(len(rewards)), gamma, 1.0)


def gae(batch: Batch, rewards: Floats, values: Floats, gamma: float, lam: float) -> Floats:
    """Generalized advantage estimates (Schulman et al. 2016, eq. 16) over the trained tokens of each row,
    0 elsewhere: float64 ``[N]``. The value after the last one is 0; tokens outside the loss mask are
    skipped, value and trace carried over, as in verl 0.9.1. Returns are these plus ``values``."""
    trained = np.flatnonzero(batch.loss_mask)
    result = np.zeros(len(rewards))
    if not len(trained):
        return result
    counts = tokens_per_row(batch).astype(np.int64)
    row = batch.row_of_token[trained]
    place = np.arange(len(trained)) - np.repeat(np.cumsum(counts) - counts, counts)
    shape = (len(batch), int(counts.max()))
    reward, value, estimates = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    reward[row, place], value[row, place] = rewards[trained], values[trained]
    trace, after = np.zeros(len(batch)), np.zeros(len(batch))
    # Beyond the end of a row everything is 0, so short rows need no case of their own.
    for column in reversed(range(shape[1])):
        delta = reward[:, column] + gamma * after - value[:, column]
        trace = delta + gamma * lam * trace
        estimates[:, column], after = trace, value[:, column]
    result[trained] = estimates[row, place]
    return result
