"""The algorithm ``dr_grpo``."""

from __future__ import annotations

from pydantic import Field

from astraflow_core.config.models import PositiveInt
from astraflow_core.config.or_none import OrNone
from astraflow_plugin_losses.algorithms.grpo import ClippedLoss, GroupLoss
from astraflow_plugin_losses.config import Aggregation, ClippedGroupConfig


class DrGrpoConfig(ClippedGroupConfig):
    """``algorithm = { use = "dr_grpo", max_tokens = 1024, … }``"""

    aggregation: Aggregation = Field(
        "const_norm_all_rows", description="As in `grpo`; the sum over rows × max_tokens."
    )
    max_tokens: OrNone[PositiveInt] = Field(
        description="The constant length; as many tokens as a completion may have."
    )
    normalize_std: bool = Field(False, description="Divide by the group's standard deviation.")


class DrGrpo(ClippedLoss[DrGrpoConfig], GroupLoss[DrGrpoConfig]):
    """Dr. GRPO (Liu et al. 2025, arXiv 2503.20783), in the variant of TRL 1.16.0 with
    ``loss_type="dr_grpo"`` and ``scale_rewards="none"``: advantage ``R - mean``, the clipped surrogate of
    ``grpo``, and the sum over tokens divided by ``rows × max_tokens``, rows without a trained token
    included. A group of one gets 0. Ratio, metrics and other keys as of ``grpo``.
    """
