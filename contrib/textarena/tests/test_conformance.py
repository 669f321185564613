from __future__ import annotations

import random

import pytest

from astraflow_core.types import Action, Observation, Prompt
from astraflow_testing.conformance.environment import Acts, EnvironmentConformance
from astraflow_testing.conformance.prompt_source import PromptSourceConformance
from astraflow_testing.conformance.subject import Subject, installed


class OfTextArena(EnvironmentConformance):
    @pytest.fixture
    def tasks(self) -> list[Prompt]:
        return [Prompt("one", {"seed": 3}), Prompt("two", {})]

    @pytest.fixture
    def acts(self) -> Acts:
        def act(observation: Observation, generator: random.Random) -> Action:
            word = generator.choice(
                ["check", "bet", "call", "fold", "<action>5</action>", "[7]", "3"]
            )
            return Action(word, role=observation.role)

        return act


class TestTextArena(OfTextArena):
    @pytest.fixture
    def component(self) -> Subject:
        terse = {
            "game": "FrozenLake-v0",
            "shown": ["game_board"],
            "instructions": "Go.",
            "turns": 3,
        }
        return installed("environment", "textarena", {"game": "GuessTheNumber-v0"}, terse)


class TestPlayers(OfTextArena):
    @pytest.fixture
    def component(self) -> Subject:
        drawn = {"game": "TicTacToe-v0", "seats": "drawn"}
        three = {"game": "ThreePlayerTicTacToe-v0", "players": 3, "turns": 20}
        return installed("environment", "textarena_players", drawn, three)


class TestSeeds(PromptSourceConformance):
    @pytest.fixture
    def component(self) -> Subject:
        held_out = {"size": 5, "split": "held_out", "seed": 2}
        return installed("prompt_source", "textarena_seeds", {"size": 10}, held_out)
