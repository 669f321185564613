"""The algorithm ``sample_thing``."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from astraflow_core.config.models import ConfigModel
from astraflow_core.types import Batch, ComponentContext, Loss, LossInputs


class SampleThingConfig(ConfigModel):
    """``algorithm = { use = "sample_thing" }``"""

    ratio_cap: Annotated[float, Field(gt=1)] = Field(
        2.0, description="Largest ratio of current to behaviour policy that still has a gradient."
    )


class SampleThing:
    """REINFORCE (Williams 1992) with the mean reward of the group as baseline.

    The loss is ``-A * min(ratio, ratio_cap)`` with the ratio of the current to the behaviour policy. Each trained
    token of the mini-batch has the same share.
    """

    needs: frozenset[str] = frozenset()

    def __init__(self, config: SampleThingConfig, context: ComponentContext) -> None:
        self._cap = config.ratio_cap

    def advantages(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Reward minus mean of the group at trained tokens, 0 elsewhere: float32 ``[N]``."""
        distance = batch.rewards.astype(np.float64) - batch.group_mean
        return batch.spread(distance.astype(np.float32)) * batch.loss_mask

    def weights(self, batch: Batch) -> dict[str, npt.NDArray[np.float32]]:
        """1 / trained tokens at trained tokens: float32 ``[N]``."""
        mask = batch.loss_mask.astype(np.float32)
        return {"policy": (mask / max(int(mask.sum()), 1)).astype(np.float32)}

    def loss(self, inputs: LossInputs) -> Loss:
        """The term ``policy``. Positions outside the mask hold anything, so they are not read."""
        trained = inputs.mask
        ratio = (inputs.logprobs[trained] - inputs.behaviour[trained]).exp()
        gain = inputs.weights["policy"][trained] * inputs.advantages[trained]
        return Loss({"policy": (-1.0, (gain * ratio.clamp(max=self._cap)).sum())}, {})
