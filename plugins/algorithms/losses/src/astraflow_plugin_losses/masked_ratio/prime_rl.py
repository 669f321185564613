"""The algorithm ``prime_rl``."""

from __future__ import annotations

from pydantic import Field

from astraflow_plugin_losses.algorithms.grpo import GroupLoss
from astraflow_plugin_losses.config import GroupConfig, NotNegative, Positive
from astraflow_plugin_losses.policy import Tensor, Tokens


class PrimeRlConfig(GroupConfig):
    """``algorithm = { use = "prime_rl", … }``"""

    normalize_std: bool = Field(False, description="Divide by the group's standard deviation.")
    mask_low: Positive = Field(
        0.2,
        description="Tokens with A ≤ 0 whose probability fell by more are masked; prime-rl: dppo_mask_low.",
    )
    mask_high: Positive = Field(
        0.2,
        description="Tokens with A > 0 whose probability rose by more are masked; prime-rl: dppo_mask_high.",
    )
    advantage_coef: NotNegative = Field(
        1.0, description="Multiplies advantages; prime-rl: adv_tau."
    )
    ratio_coef: NotNegative = Field(
        1e-3, description="Weight of (log r)², of masked tokens too; prime-rl: kl_tau."
    )


class PrimeRl(GroupLoss[PrimeRlConfig]):
    """The default loss of prime-rl (``default_loss_fn``, its variant of 2026): the mask of DPPO-Binary-TV (arXiv
    2602.04879) and the square of the log-ratio of Kimi K2.5 (arXiv 2602.02276), with the advantage ``R - mean``.

    ``-m · advantage_coef · A · r + ratio_coef · (log r)²``, mean over all trained tokens of the mini-batch. m is 0 where
    A > 0 and the probability rose by more than ``mask_high``, or A ≤ 0 and it fell by more than ``mask_low``. The ratio
    has its gradient (unlike ``dppo``), no bound and no clamp. Metrics as of ``grpo``; ``clip_fraction`` counts masked
    tokens.
    """

    def _surrogate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        config, up = self._config, tokens.advantages > 0
        moved = tokens.current.detach().exp() - tokens.proximal.exp()
        masked = (up & (moved > config.mask_high)) | (~up & (moved < -config.mask_low))
        gained = config.advantage_coef * tokens.advantages * tokens.log_ratio.exp()
        loss = config.ratio_coef * tokens.log_ratio.square() - gained * ~masked
        return loss, {"clip_fraction": masked.to(loss.dtype)}
