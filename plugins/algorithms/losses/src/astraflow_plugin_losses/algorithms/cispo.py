"""The algorithm ``cispo``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from astraflow_plugin_losses.algorithms.grpo import GroupLoss
from astraflow_plugin_losses.config import GroupConfig, NotNegative
from astraflow_plugin_losses.policy import Tensor, Tokens


class CispoConfig(GroupConfig):
    """``algorithm = { use = "cispo", … }``"""

    clip_low: Annotated[float, Field(ge=0, le=1)] = Field(
        1.0, description="The weight is at least 1 - clip_low."
    )
    clip_high: NotNegative = Field(
        4.0,
        description="The weight is at most 1 + clip_high, as in verl; TRL's epsilon_high is 1 + this.",
    )


class Cispo(GroupLoss[CispoConfig]):
    """CISPO (MiniMax-M1, 2025, arXiv 2506.13585, eq. 4) in the variant of TRL 1.16.0 ``loss_type="cispo"`` with
    ``epsilon_high = 5``: ``-sg(min(r, 5)) · A · log π``, mean over all trained tokens.

    The weight has no gradient, so a token whose weight is bounded still learns. ``clip_low`` below 1 gives
    verl's clip from both sides. Metrics as of ``grpo``; ``clip_fraction`` counts bounded weights.
    """

    def _surrogate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        ratio = tokens.log_ratio.detach().exp()
        weight = ratio.clamp(1 - self._config.clip_low, 1 + self._config.clip_high)
        bounded = (weight != ratio).to(ratio.dtype)
        return -weight * tokens.advantages * tokens.current, {"clip_fraction": bounded}
