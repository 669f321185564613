"""The base of losses that compare turns: they report how much of what they compare the workflow provides."""

from __future__ import annotations

import logging
from typing import ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from astraflow_core.types import Batch, ComponentContext, Loss, LossInputs
from astraflow_plugin_losses.algorithms.grpo import ClippedLoss
from astraflow_plugin_losses.config import ClipConfig, TurnRewardConfig
from astraflow_plugin_losses.turn_level.turns import TurnTable

log = logging.getLogger(__name__)


class TurnClipConfig(ClipConfig, TurnRewardConfig):
    """Keys of clipped losses over turns."""


C = TypeVar("C", bound=TurnClipConfig)


class TurnLoss(ClippedLoss[C]):
    """The clipped surrogate with advantages of turns. The metric :attr:`SHARE` is the share of the turns that have
    what the algorithm uses; the first batch without any is logged as a warning, once."""

    NAME: ClassVar[str]
    SHARE: ClassVar[str] = "turns_rewarded"
    LACKS: ClassVar[str]
    """What is amiss without it, and what a workflow is to give."""

    def __init__(self, config: C, context: ComponentContext) -> None:
        super().__init__(config, context)
        self._warned = False

    @staticmethod
    def _given(table: TurnTable) -> npt.NDArray[np.bool_]:
        """Whether each turn has it, bool ``[K]``: its own reward, unless a subclass overrides this."""
        return np.asarray(table.earned != 0)

    def _table(self, batch: Batch) -> TurnTable:
        """The turns of ``batch``; logs a warning if the workflow provides nothing for them."""
        table = TurnTable(batch, self._config.outcome, self.NAME)
        given = self._given(table)
        if len(given) and not given.any() and not self._warned:
            self._warned = True
            log.warning(
                "%s: none of the %d turns of batch %s %s",
                self.NAME,
                len(given),
                batch.id,
                self.LACKS,
            )
        return table

    def weights(self, batch: Batch) -> dict[str, npt.NDArray[np.float32]]:
        """Beside those of every policy loss, one of the metric's name: it adds up to the metric."""
        table = TurnTable(batch, self._config.outcome, self.NAME)
        return {**super().weights(batch), self.SHARE: table.share(self._given(table))}

    def loss(self, inputs: LossInputs) -> Loss:
        """With the metric :attr:`SHARE`."""
        from astraflow_plugin_losses import tensors  # torch is not needed before

        loss = super().loss(inputs)
        share = tensors.masked(inputs.mask, inputs.weights[self.SHARE]).sum()
        return Loss(loss.terms, {**loss.metrics, self.SHARE: share.detach()})
