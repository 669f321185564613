from __future__ import annotations

import random

import pytest

from astraflow_core.types import Action, Observation, Prompt
from astraflow_testing.conformance.environment import Acts, EnvironmentConformance
from astraflow_testing.conformance.environment import guess as guessed
from astraflow_testing.conformance.prompt_source import PromptSourceConformance
from astraflow_testing.conformance.subject import Subject, installed

GOAL = {"kind": "herbal tea", "attributes": ["organic"], "options": {"flavor": "mint"}, "price": 20}
REPLIES = (
    "search[tea]",
    "click[b00001]",
    "click[next >]",
    "click[mint]",
    "click[buy now]",
    "click[< prev]",
)


class TestShop(EnvironmentConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("environment", "shop", {"turns": 6}, {"actions": "tools", "page": 2})

    @pytest.fixture
    def tasks(self) -> list[Prompt]:
        data = {"instruction": "Tea.", "goal": GOAL, "catalogue": {"seed": 0, "products": 30}}
        return [Prompt("one", data), Prompt("two", data | {"instruction": "Mint tea."})]

    @pytest.fixture
    def acts(self) -> Acts:
        def reply(observation: Observation, generator: random.Random) -> Action:
            return (
                guessed(observation, generator)
                if observation.tools
                else Action(generator.choice(REPLIES))
            )

        return reply


class TestShopGoals(PromptSourceConformance):
    @pytest.fixture
    def component(self) -> Subject:
        held_out = {"products": 30, "size": 12, "split": "held_out", "seed": 3, "catalogue": 2}
        return installed("prompt_source", "shop_goals", {"products": 50, "size": 40}, held_out)
