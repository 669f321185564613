"""Prompt source ``gymnasium_seeds``: seeds of an environment's resets."""

from __future__ import annotations

import random

from astraflow_contrib_gymnasium.config import SeedsConfig
from astraflow_core.types import ComponentContext
from astraflow_environments.tasks import PromptList, Task, drawn

SEEDS = 2**31
"""Seeds are below this, since many an environment gives its seed to a generator of 32 bits."""


class GymnasiumSeeds(PromptList):
    """Different seeds as ``data["seed"]``. The seed alone decides the split, so that no key mixes them."""

    def __init__(self, config: SeedsConfig, context: ComponentContext) -> None:
        options = {"options": config.options} if config.options else {}

        def draw(generator: random.Random) -> Task:
            seed = generator.randrange(SEEDS)
            return str(seed), lambda: {"seed": seed, **options}

        super().__init__(drawn("gymnasium_seeds", config, draw))
