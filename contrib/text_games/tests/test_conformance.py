from __future__ import annotations

import random

import pytest

from astraflow_core.types import Action, Observation, Prompt
from astraflow_testing.conformance.environment import Acts, EnvironmentConformance, guess
from astraflow_testing.conformance.prompt_source import PromptSourceConformance
from astraflow_testing.conformance.subject import Subject, installed


class TestLevels(PromptSourceConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed(
            "prompt_source",
            "game_levels",
            {"game": "key_door"},
            {"game": "binary_search", "split": "held_out", "seed": 3},
        )


TASKS = {
    "key_door": {"squares": 6, "player": 3, "key": 1, "door": 4, "turns": 6},
    "binary_search": {"highest": 63, "number": 17, "turns": 6},
}


class OfAGame(EnvironmentConformance):
    game = ""

    @pytest.fixture
    def component(self) -> Subject:
        terse = {"wording": "terse", "step_rewards": False}
        return installed("environment", self.game, {}, {"actions": "tools"}, terse)

    @pytest.fixture
    def tasks(self) -> list[Prompt]:
        level = TASKS[self.game]
        return [Prompt("one", {"level": level}), Prompt("two", {"level": level | {"turns": 3}})]

    @pytest.fixture
    def acts(self) -> Acts:
        words = {"key_door": ["l", "r", "take", "o"], "binary_search": ["16", "17", "40"]}

        def move(observation: Observation, generator: random.Random) -> Action:
            if observation.tools:
                return guess(observation, generator)
            return Action(generator.choice(words[self.game]))

        return move


class TestKeyDoor(OfAGame):
    game = "key_door"


class TestBinarySearch(OfAGame):
    game = "binary_search"
