"""Old rows count less: they come into a batch the less likely, the older they are.

For each batch the fresh rows are put in a random order, each next row with a probability proportional to
``decay ** staleness`` among those that are left, where staleness is the version that the batch updates minus the
row's smallest. What takes the first of them, the batch or a policy such as a replay, so draws without replacement
by these weights. The share of old samples in what is trained falls smoothly up to the run's bound, beyond which
rows are dropped as always; a row that is passed over ages, and has its turn later or never.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from astraflow_core.types import BufferedRow, ComponentContext
from astraflow_plugin_staleness.config import StalenessDecayConfig
from astraflow_policy_tools.chance import Chance
from astraflow_policy_tools.states import require_keys


class StalenessDecay:
    """Arranges the fresh rows by chance."""

    def __init__(self, config: StalenessDecayConfig, context: ComponentContext) -> None:
        self._decay = config.decay
        self._chance = Chance(context.seed)

    def arrange(self, fresh: Sequence[BufferedRow], version: int) -> list[BufferedRow]:
        """All fresh rows, in a random order by their weights."""
        weights = [self._decay ** max(version - row.min_version, 0) for row in fresh]
        return [fresh[index] for index in self._chance.order(weights)]

    def state_dict(self) -> dict[str, Any]:
        """The generator."""
        return {"chance": self._chance.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as the policy that gave ``state`` would."""
        require_keys(state, "chance")
        self._chance.load_state_dict(state["chance"])
