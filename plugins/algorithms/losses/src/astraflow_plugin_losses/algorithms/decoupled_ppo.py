"""The algorithm ``decoupled_ppo``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from astraflow_plugin_losses.algorithms.grpo import ClippedLoss, GroupLoss
from astraflow_plugin_losses.config import ClippedGroupConfig, Correction, Positive


class DecoupledPpoConfig(ClippedGroupConfig):
    """``algorithm = { use = "decoupled_ppo", … }``"""

    std_eps: Positive = Field(1e-5, description="Added to the standard deviation.")
    proximal: Literal["behaviour", "recompute", "loglinear"] = Field(
        "recompute", description="As in `grpo`; 'behaviour' with no corrections is plain PPO."
    )
    corrections: tuple[Correction, ...] = Field(
        (Correction(mode="mask", level="token", low=0.0, high=5.0, estimator="ratio"),),
        description="As in `grpo`; AReaL's modes are 'truncate' and 'mask' at level 'token' or 'geometric'.",
    )


class DecoupledPpo(ClippedLoss[DecoupledPpoConfig], GroupLoss[DecoupledPpoConfig]):
    """Decoupled PPO (Hilton et al. 2022, arXiv 2110.00641; AReaL, Fu et al. 2025, arXiv 2505.24298, eq. 5) in
    the variant of AReaL 1.0.4: the clip is on current / proximal, the loss of a token is multiplied by
    ``w`` = proximal / behaviour, and tokens with ``w > 5`` are masked (mode ``token_mask``) but stay in the
    denominator, which is the number of trained tokens.

    The proximal log-probs are computed at the start of the update; ``proximal = "loglinear"`` interpolates
    instead between behaviour and current, with ``(v - 1 - v_token) / (v - v_token)`` of the latter, within
    [0, 1], and costs no pass. Advantages are relative to the group (eps 1e-5). Metrics as of ``grpo``, with
    ``correction_mean`` (of w as it is used) and ``masked_fraction``.
    """
