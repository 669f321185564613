"""The algorithm ``maxrl``."""

from __future__ import annotations

import logging

import numpy as np
from pydantic import Field

from astraflow_core.config.or_none import OrNone
from astraflow_core.types import Batch, ComponentContext
from astraflow_plugin_losses.algorithms.grpo import ClippedLoss
from astraflow_plugin_losses.config import ClipConfig, Compares, DualClip, GroupUnit, Positive
from astraflow_plugin_losses.normalization import Floats, group_statistics

log = logging.getLogger(__name__)


class MaxRlConfig(ClipConfig):
    """``algorithm = { use = "maxrl", … }``"""

    log_ratio_clamp: OrNone[Positive] = Field(
        20.0, description="Log-ratios are clamped to ± this. 'none': not at all."
    )
    dual_clip: DualClip = Field(
        3.0, description="Bounds the loss at -A · dual_clip where A < 0. 'none': no bound."
    )
    group_unit: GroupUnit = Field("sequence", description="As in `grpo`.")

    @property
    def compares(self) -> Compares:
        """The units of a group."""
        return "trajectories" if self.group_unit == "trajectory" else "sequences"


class MaxRl(ClippedLoss[MaxRlConfig]):
    """Maximum Likelihood Reinforcement Learning (Tajwar et al. 2026, arXiv 2602.02710), the paper's variant with the
    policy loss ``vanilla`` of verl 0.9.1.

    Advantage ``(R - mean) / mean`` over the group, 0 in a group that earned nothing: for rewards of 0 and 1 the mean of
    the gradients of the right rows alone, less their expectation, which is that of the log of the probability to be
    right. A group of one gets 0, and so does one whose mean is below 0; the first reward below 0 is warned of. Dual clip
    3, log-ratios within ±20, token mean. Metrics as of ``grpo``.
    """

    def __init__(self, config: MaxRlConfig, context: ComponentContext) -> None:
        super().__init__(config, context)
        self._warned = False

    def _advantages(self, batch: Batch) -> Floats:
        of = group_statistics(batch, self._config.group_unit)
        if not self._warned and (lowest := of.reward.min(initial=0.0)) < 0:
            self._warned = True
            log.warning(
                "maxrl: batch %s has the reward %g, and the mean of a group counts as a rate of success: give rewards of "
                "at least 0, or take grpo",
                batch.id,
                lowest,
            )
        earned = of.mean > 0
        relative = (of.reward - of.mean) / np.where(earned, of.mean, 1.0)
        return self._per_row(batch, np.where(earned, relative, 0.0))
