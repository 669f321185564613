"""The algorithm ``sapo``."""

from __future__ import annotations

from pydantic import Field

from astraflow_core.config.or_none import OrNone
from astraflow_plugin_losses.algorithms.grpo import GroupLoss
from astraflow_plugin_losses.config import Aggregation, GroupConfig, Positive, RatioLevelConfig
from astraflow_plugin_losses.policy import Tensor, Tokens


class SapoConfig(GroupConfig, RatioLevelConfig):
    """``algorithm = { use = "sapo", … }``"""

    aggregation: Aggregation = Field(
        "seq_mean_token_mean", description="As in `grpo`; AstraFlow: token_mean."
    )
    log_ratio_clamp: OrNone[Positive] = Field(
        20.0, description="Log-ratios are clamped to ± this. 'none': not at all."
    )
    tau_positive: Positive = Field(1.0, description="Temperature of the gate where A > 0.")
    tau_negative: Positive = Field(1.05, description="Temperature of the gate where A ≤ 0.")


class Sapo(GroupLoss[SapoConfig]):
    """Soft Adaptive Policy Optimization (Gao et al. 2025, arXiv 2511.20347) in the variant of verl 0.9.1:
    ``-A · sigmoid(tau (r - 1)) · 4 / tau`` with tau by the sign of A, log-ratios within ±20, mean per row
    and then over rows that train a token. Metrics: ``approx_kl``, ``ratio_mean``, and ``gate_mean``, the
    mean of the gate's slope ``4 s (1 - s)`` (1 on policy, 0 where nothing is learned). ``ratio_level = "geometric"`` is
    TRL 1.16.0 with ``importance_sampling_level="sequence"``, whose mean is over all rows.
    """

    def _surrogate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        tokens = self._at_level(tokens, self._config.ratio_level)
        ratio, up = tokens.log_ratio.exp(), tokens.advantages > 0
        tau = up * self._config.tau_positive + ~up * self._config.tau_negative
        gate = (tau * (ratio - 1)).sigmoid()
        slope = 4 * (gate * (1 - gate)).detach()
        return -tokens.advantages * gate * 4 / tau, {"gate_mean": slope}
