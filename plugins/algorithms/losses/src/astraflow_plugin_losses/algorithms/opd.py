"""The algorithm ``opd``: on-policy distillation."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from astraflow_core.errors import UserError
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
    teacher: Literal["reference", "engine"] = Field(
        "reference",
        description="Whose log-probs teach: of the trainer's reference model, or those that a workflow such as `taught` asked "
        "of an engine of the run.",
    )

    @property
    def episode_columns(self) -> tuple[str, ...]:
        """See :class:`astraflow_core.protocols.algorithm.Algorithm`."""
        return ("teacher_logprobs",) if self.teacher == "engine" else ()


class Opd(PolicyLoss[OpdConfig]):
    """On-policy distillation (Thinking Machines, Lu 2025, as in the Tinker cookbook): the samples are the
    student's own, and the advantage of a token is ``coef · (log teacher - log behaviour)``, the negated
    reverse KL at the sampled token; the loss is ``-r · A`` with r the ratio of the current to the behaviour
    policy, not clipped, mean over all trained tokens. Rewards play no part.

    The teacher is the reference model of the trainer, of the same vocabulary (``reference_model`` of the
    trainer ``torch``), or with ``teacher = "engine"`` whoever gave each sequence its ``teacher_logprobs``: the workflow
    ``taught`` asks engines of the run, one for each prompt source if wanted, as the cookbook's datasets have. Metrics: ``reverse_kl`` of the behaviour policy, ``approx_kl``, ``ratio_mean``.
    """

    def __init__(self, config: OpdConfig, context: ComponentContext) -> None:
        super().__init__(config, context)
        if config.teacher == "reference":
            self._needs |= {"reference"}

    def _advantages(self, batch: Batch) -> Floats:
        gap = self._teacher(batch).astype(np.float64) - batch.logprobs
        rewards = np.where(batch.loss_mask, self._config.coef * gap, 0.0)
        both = returns_to_go(batch, rewards, self._config.discount)
        return both + returns_to_go(batch, self._kl_rewards(batch))

    def _teacher(self, batch: Batch) -> npt.NDArray[np.float32]:
        """What the teacher gives each token, float32 ``[N]``."""
        if self._config.teacher == "reference":
            assert batch.reference is not None, "the algorithm declares that a teacher is needed"
            return batch.reference
        if batch.teacher_logprobs is None:
            raise UserError(
                f"opd with teacher = 'engine' reads log-probs of a teacher, and batch {batch.id!r} has none: they come with "
                "the sequences of a workflow such as 'taught'"
            )
        return batch.teacher_logprobs

    def weights(self, batch: Batch) -> dict[str, npt.NDArray[np.float32]]:
        """As of every policy loss; and ``teacher``, what the teacher gives each token, for the metric."""
        teacher = np.where(batch.loss_mask, self._teacher(batch), np.float32(0))
        return {**super().weights(batch), "teacher": teacher}

    def _surrogate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        from astraflow_plugin_losses.tensors import masked

        given = tokens.inputs
        gap = masked(given.mask, given.behaviour) - masked(given.mask, given.weights["teacher"])
        return -tokens.log_ratio.exp() * tokens.advantages, {"reverse_kl": gap}
