"""The algorithm ``rloo``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from astraflow_core.config.or_none import OrNone
from astraflow_plugin_losses.algorithms.grpo import ClippedLoss, GroupLoss
from astraflow_plugin_losses.config import (
    ClippedGroupConfig,
    DualClip,
    Positive,
    RatioLevelConfig,
)
from astraflow_plugin_losses.policy import Tensor, Tokens


class RlooConfig(ClippedGroupConfig, RatioLevelConfig):
    """``algorithm = { use = "rloo", … }``"""

    log_ratio_clamp: OrNone[Positive] = Field(
        20.0, description="Log-ratios are clamped to ± this. 'none': not at all."
    )
    dual_clip: DualClip = Field(
        3.0, description="Bounds the loss at -A · dual_clip where A < 0. 'none': no bound."
    )
    normalize_std: bool = Field(False, description="Divide by the group's standard deviation.")
    leave_one_out: bool = Field(True, description="The baseline is the mean of the other rows.")
    singleton_advantage: Literal["zero", "reward"] = Field(
        "reward", description="Advantage of a group of one."
    )


class Rloo(ClippedLoss[RlooConfig], GroupLoss[RlooConfig]):
    """REINFORCE leave-one-out (Ahmadian et al. 2024, arXiv 2402.14740) in the variant of verl 0.9.1:
    advantage estimator ``rloo`` with the policy loss ``vanilla``.

    Advantage ``n / (n - 1) · (R - mean)``, a group of one keeps R; PPO clip on the ratio of each token, dual
    clip 3, log-ratios within ±20, mean over all trained tokens. TRL 1.16.0 clips the ratio of the whole row, the product:
    ``ratio_level = "sequence"`` with ``aggregation = "seq_mean_token_mean_all_rows"``, and neither dual clip nor
    clamp. Metrics as of ``grpo``.
    """

    def _surrogate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        return super()._surrogate(self._at_level(tokens, self._config.ratio_level))
