"""The algorithm ``opo``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from astraflow_core.config.or_none import OrNone
from astraflow_plugin_losses.algorithms.grpo import ClippedLoss, GroupLoss
from astraflow_plugin_losses.config import ClippedGroupConfig, DualClip, GroupUnit, Positive


class OpoConfig(ClippedGroupConfig):
    """``algorithm = { use = "opo", … }``"""

    log_ratio_clamp: OrNone[Positive] = Field(
        20.0, description="Log-ratios are clamped to ± this. 'none': not at all."
    )
    dual_clip: DualClip = Field(
        3.0, description="Bounds the loss at -A · dual_clip where A < 0. 'none': no bound."
    )
    normalize_std: bool = Field(False, description="Divide by the group's standard deviation.")
    group_unit: GroupUnit = Field("token", description="As in `grpo`.")
    singleton_advantage: Literal["zero", "reward"] = Field(
        "reward", description="Advantage of a group of one."
    )


class Opo(ClippedLoss[OpoConfig], GroupLoss[OpoConfig]):
    """On-Policy RL with Optimal reward baseline (Hao et al. 2025, arXiv 2505.23585, eq. 8) in the variant of verl
    0.9.1: advantage estimator ``opo`` with the policy loss ``vanilla``.

    The baseline is the mean reward of the group weighted by length, ``Σ l R / Σ l`` with l the trained tokens
    of a row: that which minimises the variance of the gradient if its square grows with the length. Not
    scaled; a group of one keeps R. PPO clip on the ratio of each token, dual clip 3, log-ratios within ±20,
    mean over all trained tokens. Metrics as of ``grpo``.
    """
