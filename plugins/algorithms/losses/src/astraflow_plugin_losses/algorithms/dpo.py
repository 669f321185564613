"""The algorithm ``dpo``, on the rows of a group."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from pydantic import Field

from astraflow_core.config.models import ConfigModel
from astraflow_core.types import Batch, ComponentContext, Loss, LossInputs
from astraflow_plugin_losses.config import Compares, Positive
from astraflow_plugin_losses.normalization import Floats, tokens_per_row


class DpoConfig(ConfigModel):
    """``algorithm = { use = "dpo", … }``"""

    beta: Positive = Field(0.1, description="Strength of the pull to the reference model.")

    @property
    def compares(self) -> Compares:
        """A pair is two sequences of a group."""
        return "sequences"


class Dpo:
    """Direct Preference Optimization (Rafailov et al. 2023, arXiv 2305.18290, eq. 7) in the online variant of TRL
    1.16.0 (``OnlineDPOTrainer``, ``loss_type="sigmoid"``): ``-log σ(beta · margin)``, the margin being the
    log-ratio to the reference model summed over the chosen row less that of the rejected one; mean over
    pairs.

    A group gives one pair: of its rows in the mini-batch that train a token, that with the highest and that
    with the lowest reward (TRL samples two); none if these are equal. Since a pair may be cut apart into
    micro-batches, the loss is given to first order around the current log-probs of the mini-batch, where
    value and gradient are exact. Metrics, means over pairs: ``margin`` (times beta), ``accuracy``.
    """

    needs = frozenset({"reference", "current"})

    def __init__(self, config: DpoConfig, context: ComponentContext) -> None:
        self._beta = config.beta

    def advantages(self, batch: Batch) -> npt.NDArray[np.float32]:
        """1 above the mean of the group, -1 below it; no part of the loss: float32 ``[N]``."""
        sign = np.sign(batch.rewards - batch.group_mean)
        return np.where(batch.loss_mask, np.repeat(sign, batch.lengths), 0).astype(np.float32)

    def weights(self, batch: Batch) -> dict[str, npt.NDArray[np.float32]]:
        """The derivative of the loss to each token's log-prob as ``policy``; loss, margin and accuracy of
        the pairs as shares of their tokens: float32 ``[N]``."""
        assert batch.current is not None and batch.reference is not None, "needed of the trainer"
        gap = np.where(batch.loss_mask, batch.current.astype(np.float64) - batch.reference, 0.0)
        ratio = np.bincount(batch.row_of_token, weights=gap, minlength=len(batch))
        tokens = tokens_per_row(batch)
        given: dict[str, Floats] = {
            name: np.zeros(len(batch)) for name in ("policy", "value", "margin", "accuracy")
        }
        pairs = _pairs(batch, tokens)
        for chosen, rejected in pairs:
            margin = self._beta * (ratio[chosen] - ratio[rejected])
            slope = self._beta / (1 + np.exp(min(margin, 700.0))) / len(pairs)
            given["policy"][chosen], given["policy"][rejected] = -slope, slope
            share = 1 / (tokens[chosen] * len(pairs))
            given["value"][chosen] = np.logaddexp(0.0, -margin) * share
            given["margin"][chosen] = margin * share
            given["accuracy"][chosen] = (margin > 0) * share
        return {
            name: np.where(batch.loss_mask, np.repeat(rows, batch.lengths), 0.0).astype(np.float32)
            for name, rows in given.items()
        }

    def loss(self, inputs: LossInputs) -> Loss:
        """The term ``policy``."""
        from astraflow_plugin_losses.tensors import masked

        assert inputs.current is not None, "the trainer must compute current log-probs"
        moved = masked(inputs.mask, inputs.logprobs) - masked(inputs.mask, inputs.current)
        share = {name: masked(inputs.mask, values) for name, values in inputs.weights.items()}
        value = (share["value"] + share["policy"] * moved).sum()
        metrics = {name: share[name].sum() for name in ("margin", "accuracy")}
        return Loss({"policy": (1.0, value)}, metrics)


def _pairs(batch: Batch, tokens: Floats) -> list[tuple[int, int]]:
    """(chosen, rejected) rows; among equal rewards the row of the first trajectory."""
    rows = np.flatnonzero(tokens)
    order = rows[np.lexsort((batch.trajectory[rows], batch.rewards[rows], batch.group[rows]))]
    bounds = np.flatnonzero(np.diff(batch.group[order])) + 1
    pairs = []
    for group in np.split(order, bounds):
        rewards = batch.rewards[group]
        if len(group) and rewards[0] < rewards[-1]:
            pairs.append((int(group[np.searchsorted(rewards, rewards[-1])]), int(group[0])))
    return pairs
