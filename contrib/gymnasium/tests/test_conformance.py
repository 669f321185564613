from __future__ import annotations

import random

import pytest

from astraflow_core.types import Action, Observation, Prompt
from astraflow_testing.conformance.environment import Acts, EnvironmentConformance, guess
from astraflow_testing.conformance.prompt_source import PromptSourceConformance
from astraflow_testing.conformance.subject import Subject, installed


class TestGymnasium(EnvironmentConformance):
    @pytest.fixture
    def component(self) -> Subject:
        lake = {"id": "FrozenLake-v1", "actions": "tools", "observations": "render", "turns": 12}
        names = {"action_names": ["left", "down", "right", "up"], "observed_state": True}
        rooms = {"id": "worded:Rooms", "legal_actions": "commands", "metrics": ["walked"]}
        return installed(
            "environment", "gymnasium", {"id": "Blackjack-v1"}, {**lake, **names}, rooms
        )

    @pytest.fixture
    def tasks(self) -> list[Prompt]:
        return [Prompt("one", {"seed": 3}), Prompt("two", {})]

    @pytest.fixture
    def acts(self) -> Acts:
        def act(observation: Observation, generator: random.Random) -> Action:
            if observation.tools:
                return guess(observation, generator)
            return Action(generator.choice(["0", "1", "north", "east", "fly"]))

        return act


class TestSeeds(PromptSourceConformance):
    @pytest.fixture
    def component(self) -> Subject:
        held_out = {"size": 5, "split": "held_out", "options": {"room": "yard"}}
        return installed("prompt_source", "gymnasium_seeds", {"size": 10}, held_out)
