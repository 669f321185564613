"""The algorithm ``flash_reinforce``: one rollout per prompt, asynchronous, without a critic."""

from __future__ import annotations

from pydantic import Field

from astraflow_core.config.or_none import OrNone
from astraflow_core.types import Batch
from astraflow_plugin_losses.config import Aggregation, NotNegative, PolicyConfig
from astraflow_plugin_losses.normalization import Floats, tokens_per_row
from astraflow_plugin_losses.policy import PolicyLoss, Tensor, Tokens

CERTAIN = 1e-6
"""Probabilities are at least this far from 0 and 1 in the divergence, as in the published code."""


class FlashReinforceConfig(PolicyConfig):
    """``algorithm = { use = "flash_reinforce", … }``"""

    aggregation: Aggregation = Field("seq_mean_token_mean", description="As in `grpo`.")
    delta: OrNone[NotNegative] = Field(
        3e-3,
        description="Rows whose mean divergence from the policy that sampled them is above this are left out. "
        "'none': no row.",
    )


class FlashReinforce(PolicyLoss[FlashReinforceConfig]):
    """FlashREINFORCE (Zhang 2026): single-rollout asynchronous REINFORCE in the variant of its published code
    (``flashreinforce_loss`` of yifanzhang-pro/FlashREINFORCE), without its optional entropy filter.

    ``-m · sg(r) · A · log π`` with A the reward less the mean reward of all rows of the batch that train a token, not
    scaled; m is 1 for rows whose mean of ``p log(p/q) + (1 - p) log((1 - p)/(1 - q))`` is at most ``delta``, p and q the
    probabilities of the sampled token under the behaviour (or proximal) and the current policy. Mean per row and then
    over rows, those left out included. A batch is for one update. Metrics as of ``grpo`` without ``clip_fraction``;
    ``dropped_fraction``, the tokens of rows left out, and ``row_kl``, that mean.
    """

    def _advantages(self, batch: Batch) -> Floats:
        trains = tokens_per_row(batch) > 0
        rewards = batch.rewards.astype(float)
        baseline = rewards[trains].mean() if trains.any() else 0.0
        return self._per_row(batch, rewards - baseline)

    def _surrogate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        from astraflow_plugin_losses import tensors

        given, delta = tokens.inputs, self._config.delta
        p, q = (
            log.exp().clamp(CERTAIN, 1 - CERTAIN)
            for log in (tokens.proximal, tokens.current.detach())
        )
        apart = p * (p.log() - q.log()) + (1 - p) * ((-p).log1p() - (-q).log1p())
        mean = tensors.row_mean(apart, given.mask, given.row, given.rows).clamp(min=0)
        kept = mean >= 0 if delta is None else mean <= delta
        # Rejected rows may have ratios that overflow.
        weight = tensors.masked(kept, tokens.log_ratio.detach()).exp() * kept
        dropped = (~kept).to(mean.dtype)
        loss = -weight * tokens.advantages * tokens.current
        return loss, {"dropped_fraction": dropped, "row_kl": mean}
