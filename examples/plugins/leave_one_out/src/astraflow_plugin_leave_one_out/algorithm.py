"""REINFORCE with a leave-one-out baseline, for samples of an older policy too."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from astraflow_core.config.models import ConfigModel
from astraflow_core.types import Batch, ComponentContext, Loss, LossInputs


class LeaveOneOutConfig(ConfigModel):
    """``algorithm = { use = "leave_one_out", … }``"""

    ratio_cap: Annotated[float, Field(gt=1)] = Field(
        2.0, description="Largest ratio of current to behaviour policy that still has a gradient."
    )


class LeaveOneOut:
    """RLOO (Ahmadian et al. 2024, arXiv 2402.14740, eq. 8), token by token and off policy.

    The advantage of a sample is its reward minus the mean reward of the *other* samples of its group,
    which is ``n / (n - 1)`` times the distance from the group's mean; a group of one gets 0. The loss is
    ``-A · min(ratio, ratio_cap)`` with the ratio of the current to the behaviour policy: on policy its
    gradient is that of REINFORCE. Each sequence has the same share, each of its tokens an equal part.
    """

    needs: frozenset[str] = frozenset()

    def __init__(self, config: LeaveOneOutConfig, context: ComponentContext) -> None:
        self._cap = config.ratio_cap

    def advantages(self, batch: Batch) -> npt.NDArray[np.float32]:
        """One advantage per sequence at its trained tokens, 0 elsewhere: float32 ``[N]``."""
        others = np.maximum(batch.group_size - 1, 1)
        distance = batch.rewards.astype(np.float64) - batch.group_mean
        advantage = np.where(batch.group_size > 1, distance * batch.group_size / others, 0.0)
        return batch.spread(advantage.astype(np.float32)) * batch.loss_mask

    def weights(self, batch: Batch) -> dict[str, npt.NDArray[np.float32]]:
        """1 / (sequences × trained tokens of the sequence) at trained tokens: float32 ``[N]``."""
        row = batch.row_of_token
        tokens = np.bincount(row, weights=batch.loss_mask, minlength=len(batch))
        share = 1 / (np.maximum(tokens, 1) * max(np.count_nonzero(tokens), 1))
        return {"policy": batch.spread(share.astype(np.float32)) * batch.loss_mask}

    def loss(self, inputs: LossInputs) -> Loss:
        """The term ``policy``; only trained positions are read, whatever the others hold."""
        trained = inputs.mask
        ratio = (inputs.logprobs[trained] - inputs.behaviour[trained]).exp()
        share = inputs.weights["policy"][trained]
        gain = share * inputs.advantages[trained] * ratio.clamp(max=self._cap)
        capped = share * (ratio.detach() > self._cap)
        return Loss({"policy": (-1.0, gain.sum())}, {"capped_fraction": capped.sum()})
