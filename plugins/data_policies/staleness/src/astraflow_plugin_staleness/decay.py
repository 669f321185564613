"""Old rows count less: they are drawn the less likely, the older they are.

A batch is drawn from the fresh rows without replacement, each next row with a probability proportional to
``decay ** staleness``, where staleness is the version that the batch updates minus the row's smallest. So the
share of old samples in what is trained falls smoothly up to the run's bound, beyond which rows are dropped as
always; a row that is passed over ages, and may be drawn later or never.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from astraflow_core.policy_tools.chance import Chance
from astraflow_core.types import BufferedRow, ComponentContext
from astraflow_plugin_staleness.config import StalenessDecayConfig


class StalenessDecay:
    """Draws from the fresh rows; none is served twice."""

    def __init__(self, config: StalenessDecayConfig, context: ComponentContext) -> None:
        self._decay = config.decay
        self._chance = Chance(context.seed)

    def draw(
        self, count: int, fresh: Sequence[BufferedRow], kept: Sequence[BufferedRow], version: int
    ) -> list[BufferedRow] | None:
        """``count`` of the fresh rows, in their order."""
        if len(fresh) < count:
            return None
        weights = [self._decay ** max(version - row.min_version, 0) for row in fresh]
        return [fresh[index] for index in self._chance.sample(weights, count)]

    def state_dict(self) -> dict[str, Any]:
        """The generator."""
        return {"chance": self._chance.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as the policy that gave ``state`` would."""
        self._chance.load_state_dict(state["chance"])
