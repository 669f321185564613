"""The algorithm ``opd``: on-policy distillation."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from astraflow_core.types import Batch, ComponentContext
from astraflow_plugin_losses.config import PolicyConfig, Positive
from astraflow_plugin_losses.normalization import Floats
from astraflow_plugin_losses.policy import PolicyLoss, Tensor, Tokens
from astraflow_plugin_losses.returns import returns_to_go


class OpdConfig(PolicyConfig):
    """``algorithm = { use = "opd", … }``"""

    coef: Positive = Field(1.0, description="Multiplies the advantages.")
    discount: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0,
        description="Discount of later tokens in the same row; above 0 they count for earlier tokens too.",
    )


class Opd(PolicyLoss[OpdConfig]):
    """On-policy distillation (Thinking Machines, Lu 2025, as in the Tinker cookbook): the samples are the
    student's own, and the advantage of a token is ``coef · (log teacher - log behaviour)``, the negated
    reverse KL at the sampled token; the loss is ``-r · A`` with r the ratio of the current to the behaviour
    policy, not clipped, mean over all trained tokens. Rewards play no part.

    The teacher is the reference model of the trainer, of the same vocabulary (``reference_model`` of the
    trainer ``torch``). Metrics: ``reverse_kl`` of the behaviour policy, ``approx_kl``, ``ratio_mean``.
    """

    def __init__(self, config: OpdConfig, context: ComponentContext) -> None:
        super().__init__(config, context)
        self._needs |= {"reference"}

    def _advantages(self, batch: Batch) -> Floats:
        assert batch.reference is not None, "the algorithm declares that a teacher is needed"
        gap = batch.reference.astype(np.float64) - batch.logprobs
        rewards = np.where(batch.loss_mask, self._config.coef * gap, 0.0)
        both = returns_to_go(batch, rewards, self._config.discount)
        return both + returns_to_go(batch, self._kl_rewards(batch))

    def _surrogate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        from astraflow_plugin_losses.tensors import masked

        given = tokens.inputs
        assert given.reference is not None, "the algorithm declares that a teacher is needed"
        gap = masked(given.mask, given.behaviour) - masked(given.mask, given.reference)
        return -tokens.log_ratio.exp() * tokens.advantages, {"reverse_kl": gap}
