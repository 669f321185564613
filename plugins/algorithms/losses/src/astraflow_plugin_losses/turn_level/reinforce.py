"""The algorithm ``reinforce``."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from astraflow_core.config.or_none import OrNone
from astraflow_core.types import Batch
from astraflow_plugin_losses.config import (
    Compares,
    DualClip,
    Positive,
    WhitenConfig,
)
from astraflow_plugin_losses.normalization import Epsilon, Floats, whiten
from astraflow_plugin_losses.turn_level.turn_loss import TurnClipConfig, TurnLoss


class ReinforceConfig(WhitenConfig, TurnClipConfig):
    """``algorithm = { use = "reinforce", … }``"""

    log_ratio_clamp: OrNone[Positive] = Field(
        20.0, description="Log-ratios are clamped to ± this. 'none': not at all."
    )
    dual_clip: DualClip = Field(
        3.0, description="Bounds the loss at -A · dual_clip where A < 0. 'none': no bound."
    )
    gamma: Annotated[float, Field(ge=0, le=1)] = Field(0.95, description="Discount per turn.")
    baseline: Literal["none", "turn"] = Field(
        "none",
        description="'turn': a return counts less the mean of the group's returns at the same place of their trajectories.",
    )
    whiten: Literal["none", "turn", "token"] = Field(
        "none",
        description="Then normalise over the whole batch, each turn or each trained token counting once.",
    )

    @property
    def compares(self) -> Compares:
        """Trajectories with a baseline, else nothing."""
        return "trajectories" if self.baseline == "turn" else ""


class Reinforce(TurnLoss[ReinforceConfig]):
    """REINFORCE (Williams 1992; for language models arXiv 2402.14740) with discounted returns of turns: the variant of
    rLLM (``compute_mc_return``, and its advantages ``per_step`` for the baseline ``turn``, without deviation), with
    the policy loss ``vanilla`` of verl 0.9.1.

    All tokens of a turn have ``G = r + gamma · G_next``, over the turns of the trajectory; the outcome is earned in
    the last one. Returns go over all turns of a trajectory, also those of rows that are in other batches. Dual clip 3,
    log-ratios within ±20, token mean. Metrics as of ``grpo``, and ``turns_rewarded``.
    """

    NAME = "reinforce"
    LACKS = (
        "earned its own reward, so that only outcomes are discounted: where turns earn something, the workflow is to "
        "say so (Sequence.turn_rewards), as the workflow `environment` does"
    )

    def _advantages(self, batch: Batch) -> Floats:
        config = self._config
        table = self._table(batch)
        values = table.returns(config.gamma)
        if config.baseline == "turn":
            values = table.relative(values, table.place, std_eps=None)
        if config.whiten != "none":
            counts = np.bincount(table.of_token[batch.loss_mask], minlength=len(values))
            each = counts.astype(np.float64) if config.whiten == "token" else None
            epsilon = Epsilon(config.whiten_eps, config.whiten_eps_inside)
            values = whiten(values, counts > 0, each, epsilon)
        return table.at_tokens(values) + self._returns_of_kl(batch)
