"""Prompt source ``openenv_seeds``: seeds of resets."""

from __future__ import annotations

from astraflow_contrib_openenv.config import OpenEnvSeedsConfig
from astraflow_core.types import ComponentContext
from astraflow_environments.tasks import PromptList, drawn_seeds


class OpenEnvSeeds(PromptList):
    """Different seeds as ``data["seed"]``. The seed alone decides the split, so that no key mixes them."""

    def __init__(self, config: OpenEnvSeedsConfig, context: ComponentContext) -> None:
        reset = {"reset": config.reset} if config.reset else {}
        super().__init__(drawn_seeds("openenv_seeds", config, reset))
