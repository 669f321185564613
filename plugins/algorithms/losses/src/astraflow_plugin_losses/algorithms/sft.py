"""The algorithm ``sft``."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from pydantic import Field

from astraflow_core.config.models import ConfigModel
from astraflow_core.config.or_none import OrNone
from astraflow_core.types import Batch, ComponentContext, Loss, LossInputs
from astraflow_plugin_losses.shares import shares


class SftConfig(ConfigModel):
    """``algorithm = { use = "sft", … }``"""

    min_reward: OrNone[float] = Field(
        None,
        description="Only rows with at least this reward are imitated (rejection sampling, as in RAFT); "
        "'none': all.",
    )


class Sft:
    """Cross-entropy of the trained tokens, mean over all of them in the mini-batch: supervised fine-tuning as
    in TRL 1.16.0 (``SFTTrainer``, mean over the global batch). With ``min_reward`` only rows that earned it
    count, in the denominator too (RAFT, Dong et al. 2023, arXiv 2304.06767). Metric: ``nll``.
    """

    needs: frozenset[str] = frozenset()

    def __init__(self, config: SftConfig, context: ComponentContext) -> None:
        self._least = config.min_reward

    def advantages(self, batch: Batch) -> npt.NDArray[np.float32]:
        """1 at the tokens to be imitated, 0 elsewhere: float32 ``[N]``."""
        return self._chosen(batch).astype(np.float32)

    def weights(self, batch: Batch) -> dict[str, npt.NDArray[np.float32]]:
        """1 / tokens to be imitated, at these: float32 ``[N]``."""
        return {"policy": shares(batch, "token_mean", mask=self._chosen(batch))}

    def loss(self, inputs: LossInputs) -> Loss:
        """The term ``policy``."""
        from astraflow_plugin_losses.tensors import masked

        share = masked(inputs.mask, inputs.weights["policy"] * inputs.advantages)
        nll = -(share * masked(inputs.mask, inputs.logprobs)).sum()
        return Loss({"policy": (1.0, nll)}, {"nll": nll.detach()})

    def _chosen(self, batch: Batch) -> npt.NDArray[np.bool_]:
        if self._least is None:
            return batch.loss_mask
        return batch.loss_mask & np.repeat(batch.rewards >= self._least, batch.lengths)
