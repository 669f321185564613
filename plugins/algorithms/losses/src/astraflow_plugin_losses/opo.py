"""The algorithm ``opo``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from astraflow_plugin_losses.config import ClippedGroupConfig, GroupUnit, Positive
from astraflow_plugin_losses.grpo import ClippedLoss, GroupLoss


class OpoConfig(ClippedGroupConfig):
    """``algorithm = { use = "opo", … }``"""

    log_ratio_clamp: Positive | None = Field(20.0, description="Log-ratios are clamped to ± this.")
    dual_clip: Annotated[float, Field(gt=1)] | None = Field(
        3.0, description="Bounds the loss at -A · dual_clip where A < 0."
    )
    normalize_std: bool = Field(False, description="Divide by the group's standard deviation.")
    group_unit: GroupUnit = Field("token", description="As of `grpo`.")
    alone: Literal["zero", "reward"] = Field("reward", description="Advantage of a group of one.")


class Opo(ClippedLoss[OpoConfig], GroupLoss[OpoConfig]):
    """On-Policy RL with Optimal reward baseline (Hao et al. 2025, arXiv 2505.23585, eq. 8) in the variant of verl
    0.9.1: advantage estimator ``opo`` with the policy loss ``vanilla``.

    The baseline is the mean reward of the group weighted by length, ``Σ l R / Σ l`` with l the trained tokens
    of a row: that which minimises the variance of the gradient if its square grows with the length. Not
    scaled; a group of one keeps R. PPO clip on the ratio of each token, dual clip 3, log-ratios within ±20,
    mean over all trained tokens. Metrics as of ``grpo``.
    """
