"""Prompt source ``textarena_seeds``: seeds of games."""

from __future__ import annotations

from astraflow_contrib_textarena.config import TextArenaSeedsConfig
from astraflow_core.types import ComponentContext
from astraflow_environments.tasks import PromptList, drawn_seeds


class TextArenaSeeds(PromptList):
    """Different seeds as ``data["seed"]``. The seed alone decides the split, so that no key mixes them."""

    def __init__(self, config: TextArenaSeedsConfig, context: ComponentContext) -> None:
        super().__init__(drawn_seeds("textarena_seeds", config, {}))
