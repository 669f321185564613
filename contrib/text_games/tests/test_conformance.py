from __future__ import annotations

import random

import pytest

from astraflow_core.types import Action, FunctionCall, Observation, Prompt
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


class TestAdventure(EnvironmentConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed(
            "environment", "adventure", {"turns": 12}, {"turns": 6, "actions": "tools"}
        )

    @pytest.fixture
    def tasks(self) -> list[Prompt]:
        ways = {"kitchen": {"north": "shed"}, "shed": {"south": "kitchen"}}
        level = {"rooms": ways, "doors": [["kitchen", "shed"]], "start": "shed"}
        leek = {
            "things": {"leek": "kitchen", "knife": "shed"},
            "recipe": {"leek": {"cut": "", "heat": "fried"}},
        }
        coin = {"kind": "coin", "things": {"coin": "kitchen"}, "recipe": {}}
        return [
            Prompt("meal", {"level": {**level, "kind": "cooking", **leek}}),
            Prompt("coin", {"level": {**level, **coin}}),
        ]

    @pytest.fixture
    def acts(self) -> Acts:
        def act(observation: Observation, generator: random.Random) -> Action:
            listed = str(observation.messages[0]["content"]).rpartition("Possible: ")[2]
            command = generator.choice([*listed.split(", "), "fly"])
            if observation.tools:
                return Action("", (FunctionCall("c", "act", {"command": command}),))
            return Action(command)

        return act


class TestAdventureLevels(PromptSourceConformance):
    @pytest.fixture
    def component(self) -> Subject:
        held_out = {"size": 8, "split": "held_out", "seed": 3, "kinds": ["coin"]}
        return installed("prompt_source", "adventure_levels", {"size": 20}, held_out)
