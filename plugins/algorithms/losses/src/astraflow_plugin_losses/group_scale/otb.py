"""The algorithm ``otb``."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from astraflow_core.config.or_none import OrNone
from astraflow_core.types import Batch
from astraflow_plugin_losses.algorithms.grpo import ClippedLoss
from astraflow_plugin_losses.config import ClipConfig, DualClip, Positive, TurnRewardConfig
from astraflow_plugin_losses.normalization import Floats
from astraflow_plugin_losses.returns import Indices, returns_to_go, token_rewards

EPSILON = 1e-8
"""Added to the sum of the weights, as in verl."""


class OtbConfig(ClipConfig, TurnRewardConfig):
    """``algorithm = { use = "otb", … }``"""

    log_ratio_clamp: OrNone[Positive] = Field(
        20.0, description="Log-ratios are clamped to ± this. 'none': not at all."
    )
    dual_clip: DualClip = Field(
        3.0, description="Bounds the loss at -A · dual_clip where A < 0. 'none': no bound."
    )
    zero_tail: bool = Field(
        True,
        description="Where only the longest row of a group still has tokens there is no baseline; false: it is that row's "
        "own return there, so that its end learns nothing.",
    )


class Otb(ClippedLoss[OtbConfig]):
    """Optimal Token Baseline (arXiv 2602.07078) in the variant of verl 0.9.1: advantage estimator
    ``tir_optimal_token_baseline`` without importance weights, with the policy loss ``vanilla``. On rows whose trained tokens
    have no holes that is ``optimal_token_baseline``.

    ``A = G - B`` with G the return to go and, at the t-th trained token, ``B_t = Σ G_t W_t / (Σ W_t + 1e-8)`` over the
    rows of the group that have one, ``W_t = Σ_{s ≤ t} (1 - 2 π_s + Σ_v π_s(v)²)``: the squared length of the gradient of
    the log-probs of a row so far by its logits. That baseline minimises the variance of the gradient, if gradients by the
    logits stand for those by the weights. The trainer gives the terms (need ``logit_gradients``), of the weights before the
    update. A group of one has no baseline. Rows of a group that are in other batches do not count; a row that is alone in
    its batch has the mean reward of its group as baseline. Dual clip 3, log-ratios within ±20, token mean. Metrics as of
    ``grpo``.
    """

    @property
    def needs(self) -> frozenset[str]:
        """Those of every policy loss, and ``logit_gradients``."""
        return super().needs | {"logit_gradients"}

    def _advantages(self, batch: Batch) -> Floats:
        outcome = batch.rewards.astype(np.float64)
        earned = token_rewards(batch, outcome, kind=self._config.outcome) + self._kl_rewards(batch)
        returns = returns_to_go(batch, earned)
        assert batch.logit_gradients is not None, "the algorithm declares that they are needed"
        trained = np.flatnonzero(batch.loss_mask)
        row = batch.row_of_token[trained]
        first = np.searchsorted(trained, batch.offsets[:-1])
        place = np.arange(len(trained)) - first[row]
        weight = np.cumsum(batch.logit_gradients[trained].astype(np.float64))
        weight -= np.concatenate([[0.0], weight])[first[row]]
        baseline = self._baseline(batch, row, place, returns[trained], weight)
        advantages = np.zeros(len(batch.tokens))
        advantages[trained] = returns[trained] - baseline
        return advantages

    def _baseline(
        self,
        batch: Batch,
        row: Indices,
        place: Indices,
        returns: Floats,
        weight: Floats,
    ) -> Floats:
        """Of each trained token, float64 ``[M]``: ``row`` and ``place`` in it, its return and its weight."""
        group = np.unique(batch.group, return_inverse=True)[1]
        places = int(place.max(initial=0)) + 1
        cell = np.unique(group[row] * places + place, return_inverse=True)[1]
        weights, counts = np.bincount(cell, weight), np.bincount(cell)
        baseline: Floats = (np.bincount(cell, weight * returns) / (weights + EPSILON))[cell]
        if self._config.zero_tail:
            baseline[counts[cell] == 1] = 0.0
        trains = np.bincount(row, minlength=len(batch)) > 0
        baseline[(np.bincount(group, trains) == 1)[group][row]] = 0.0
        elsewhere = ((np.bincount(group) == 1)[group] & (batch.group_size > 1))[row]
        baseline[elsewhere] = batch.group_mean[row][elsewhere]
        return baseline
