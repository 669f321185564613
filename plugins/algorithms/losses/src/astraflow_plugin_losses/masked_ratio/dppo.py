"""The algorithm ``dppo``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from astraflow_core.config.or_none import OrNone
from astraflow_plugin_losses.algorithms.grpo import GroupLoss
from astraflow_plugin_losses.config import GroupConfig, Positive
from astraflow_plugin_losses.policy import Tensor, Tokens

EPS = 1e-8
"""Beside the probability of all other tokens, as in verl."""


class DppoConfig(GroupConfig):
    """``algorithm = { use = "dppo", … }``"""

    std_eps: Positive = Field(1e-6, description="Added to the standard deviation.")
    singleton_advantage: Literal["zero", "reward"] = Field(
        "reward", description="Advantage of a group of one."
    )
    log_ratio_clamp: OrNone[Positive] = Field(
        20.0, description="Log-ratios are clamped to ± this. 'none': not at all."
    )
    divergence: Literal["tv", "kl"] = Field(
        "tv",
        description="Divergence of the sampled token against all others: 'tv', the change of its "
        "probability, or 'kl'.",
    )
    divergence_low: Positive = Field(
        0.2, description="Tokens with A ≤ 0 that fell by more are masked; verl: clip_ratio_low."
    )
    divergence_high: Positive = Field(
        0.2, description="Tokens with A > 0 that rose by more are masked; verl: clip_ratio_high."
    )
    ratio_cap: Positive = Field(20.0, description="The weight is at most this; verl: clip_ratio_c.")


class Dppo(GroupLoss[DppoConfig]):
    """Divergence PPO (Qi et al. 2026, arXiv 2602.04879) in the variant of verl 0.9.1: advantage estimator ``grpo`` with
    the policy loss ``dppo_tv`` or ``dppo_kl``.

    ``-m · sg(min(r, ratio_cap)) · A · log π``, mean over all trained tokens. m is 0 for a token that moved the way its
    advantage pushes it by more than the divergence allows, whatever its ratio: a rare token may grow many times, a
    likely one may not vanish. Masked tokens stay in the mean. Metrics as of ``grpo``; ``clip_fraction`` counts masked
    tokens.
    """

    def _surrogate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        from astraflow_plugin_losses import tensors

        config, up = self._config, tokens.advantages > 0
        current, old = tokens.current.detach(), tokens.proximal
        moved = current.exp() - old.exp()
        if config.divergence == "tv":
            rose, fell = moved > config.divergence_high, moved < -config.divergence_low
        else:
            kl = tensors.binary_kl(old, current, EPS)
            rose = (kl > config.divergence_high) & (moved > 0)
            fell = (kl > config.divergence_low) & (moved < 0)
        masked = ((up & rose) | (~up & fell)).to(current.dtype)
        weight = tokens.log_ratio.detach().exp().clamp(max=config.ratio_cap)
        loss = -tokens.advantages * weight * tokens.current * (1 - masked)
        return loss, {"clip_fraction": masked}
