"""The algorithm ``gpg``."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from astraflow_core.types import Batch
from astraflow_plugin_losses.algorithms.grpo import GroupLoss
from astraflow_plugin_losses.config import GroupConfig, Positive
from astraflow_plugin_losses.normalization import Floats
from astraflow_plugin_losses.policy import Tensor, Tokens


class GpgConfig(GroupConfig):
    """``algorithm = { use = "gpg", … }``"""

    normalize_std: bool = Field(False, description="Divide by the group's standard deviation.")
    singleton_advantage: Literal["zero", "reward"] = Field(
        "reward", description="Advantage of a group of one."
    )
    scale: Literal["rewarded", "none"] = Field(
        "rewarded",
        description="Advantages are multiplied by rows / rows whose reward is not 0, of the batch, or not at all.",
    )
    divisor: Positive = Field(1.0, description="Advantages are divided by this; verl: f_norm.")


class Gpg(GroupLoss[GpgConfig]):
    """Group Policy Gradient (Chu et al. 2025, arXiv 2504.02546) in the variant of verl 0.9.1: advantage estimator
    ``gpg`` with the policy loss ``gpg``.

    ``-A · log π`` without any ratio, mean over all trained tokens; ``A = alpha · (R - mean) / divisor`` with alpha = rows
    of the batch / rows whose reward is not 0 (at least 1). (The paper counts groups whose rewards differ.) A group of one
    keeps R. Nothing corrects for stale data: keep ``max_staleness`` small. Metrics: ``approx_kl``, ``ratio_mean`` and
    those of the log-ratio of every policy loss.
    """

    def _advantages(self, batch: Batch) -> Floats:
        advantages = self._of_rows(batch) / self._config.divisor
        if self._config.scale == "rewarded":
            advantages *= len(batch) / max(1, int(np.count_nonzero(batch.rewards)))
        return self._per_row(batch, advantages)

    def _surrogate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        return -tokens.advantages * tokens.current, {}
