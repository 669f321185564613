"""The algorithm ``rloo``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from astraflow_plugin_losses.config import ClippedGroupConfig, Positive
from astraflow_plugin_losses.grpo import ClippedLoss, GroupLoss


class RlooConfig(ClippedGroupConfig):
    """``algorithm = { use = "rloo", … }``"""

    log_ratio_clamp: Positive | None = Field(20.0, description="Log-ratios are clamped to ± this.")
    dual_clip: Annotated[float, Field(gt=1)] | None = Field(
        3.0, description="Bounds the loss at -A · dual_clip where A < 0."
    )
    normalize_std: bool = Field(False, description="Divide by the group's standard deviation.")
    leave_one_out: bool = Field(True, description="The baseline is the mean of the other rows.")
    alone: Literal["zero", "reward"] = Field("reward", description="Advantage of a group of one.")


class Rloo(ClippedLoss[RlooConfig], GroupLoss[RlooConfig]):
    """REINFORCE leave-one-out (Ahmadian et al. 2024, arXiv 2402.14740) in the variant of verl 0.9.1:
    advantage estimator ``rloo`` with the policy loss ``vanilla``.

    Advantage ``n / (n - 1) · (R - mean)``, a group of one keeps R; PPO clip on the ratio of each token, dual
    clip 3, log-ratios within ±20, mean over all trained tokens. (TRL clips the ratio of the whole row.)
    Metrics as of ``grpo``.
    """
