"""Prompt source ``gymnasium_seeds``: seeds of an environment's resets."""

from __future__ import annotations

from astraflow_contrib_gymnasium.config import GymnasiumSeedsConfig
from astraflow_core.types import ComponentContext
from astraflow_environments.tasks import PromptList, drawn_seeds


class GymnasiumSeeds(PromptList):
    """Different seeds as ``data["seed"]``. The seed alone decides the split, so that no key mixes them."""

    def __init__(self, config: GymnasiumSeedsConfig, context: ComponentContext) -> None:
        options = {"options": config.options} if config.options else {}
        super().__init__(drawn_seeds("gymnasium_seeds", config, options))
