"""The algorithm ``reinforce_pp``."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from astraflow_core.config.or_none import OrNone
from astraflow_core.types import Batch
from astraflow_plugin_losses.algorithms.grpo import ClippedLoss
from astraflow_plugin_losses.config import (
    ClipConfig,
    DualClip,
    GroupUnit,
    KlEstimator,
    Positive,
    TurnRewardConfig,
    WhitenConfig,
)
from astraflow_plugin_losses.normalization import Epsilon, Floats, group_relative, whiten
from astraflow_plugin_losses.returns import returns_to_go, token_rewards


class ReinforcePpConfig(ClipConfig, WhitenConfig, TurnRewardConfig):
    """``algorithm = { use = "reinforce_pp", … }``"""

    log_ratio_clamp: OrNone[Positive] = Field(
        20.0, description="Log-ratios are clamped to ± this. 'none': not at all."
    )
    dual_clip: DualClip = Field(
        3.0, description="Bounds the loss at -A · dual_clip where A < 0. 'none': no bound."
    )
    kl_estimator: KlEstimator = Field("k1", description="As in `grpo`.")
    kl_in: Literal["loss", "reward"] = Field("reward", description="As in `grpo`.")
    baseline: Literal["none", "group"] = Field(
        "none", description="'group': the reward counts less the mean of its group (RF++-baseline)."
    )
    gamma: Annotated[float, Field(ge=0, le=1)] = Field(1.0, description="Discount per token.")
    holes: Literal["carry", "reset"] = Field(
        "carry",
        description="Returns are carried over tokens that are not trained, or end there, so that only the "
        "last turn of a row learns from its outcome (SkyRL).",
    )
    group_unit: GroupUnit = Field("sequence", description="As in `grpo`; of the baseline 'group'.")


class ReinforcePp(ClippedLoss[ReinforcePpConfig]):
    """REINFORCE++ (Hu et al. 2025, arXiv 2501.03262) in the variant of verl 0.9.1: advantage estimators
    ``reinforce_plus_plus`` and ``reinforce_plus_plus_baseline`` with the policy loss ``vanilla``.

    The reward stands at the last trained token, what a turn earned at the last of the turn (``outcome`` says how
    they add), ``-kl_coef · KL`` at each; returns to go carry through tokens
    that are not trained (``holes``); they are whitened over the trained tokens of the whole batch (n - 1, eps 1e-8
    inside the root). With ``baseline = "group"`` the reward less the mean of its group counts (a group of one
    keeps its reward, as in verl), discounts aside. Dual clip 3, log-ratios within ±20, token mean.
    Metrics as of ``grpo``.
    """

    def _advantages(self, batch: Batch) -> Floats:
        outcome, config = batch.rewards.astype(np.float64), self._config
        if config.baseline == "group":
            outcome = group_relative(
                batch,
                normalize_std=False,
                std_eps=0.0,
                singleton_advantage="reward",
                unit=config.group_unit,
            )
        rewards = token_rewards(batch, outcome, kind=config.outcome) + self._kl_rewards(batch)
        returns = returns_to_go(batch, rewards, config.gamma, config.holes == "reset")
        epsilon = Epsilon(config.whiten_eps, config.whiten_eps_inside)
        return whiten(returns, batch.loss_mask, epsilon=epsilon)
