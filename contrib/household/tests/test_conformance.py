from __future__ import annotations

import random

import pytest

from astraflow_core.types import Action, FunctionCall, Observation, Prompt
from astraflow_testing.conformance.environment import Acts, EnvironmentConformance
from astraflow_testing.conformance.prompt_source import PromptSourceConformance
from astraflow_testing.conformance.subject import Subject, installed

LEVEL = {
    "kind": "heat", "object": "mug", "target": "shelf", "places": ["shelf 1", "microwave 1", "drawer 1"],
    "objects": {"mug 1": "drawer 1", "fork 1": "shelf 1"},
}  # fmt: skip


class TestHousehold(EnvironmentConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed(
            "environment",
            "household",
            {"turns": 9, "demonstrated": "turns"},
            {"turns": 5, "actions": "tools", "demonstration": False},
        )

    @pytest.fixture
    def tasks(self) -> list[Prompt]:
        return [Prompt("one", {"level": LEVEL}), Prompt("two", {"level": LEVEL | {"kind": "put"}})]

    @pytest.fixture
    def acts(self) -> Acts:
        def act(observation: Observation, generator: random.Random) -> Action:
            listed = str(observation.messages[-1]["content"]).rpartition("AVAILABLE ACTIONS: ")[2]
            command = generator.choice([*listed.split(", "), "fly"])
            if observation.tools:
                return Action("", (FunctionCall("c", "act", {"command": command}),))
            return Action(f"THOUGHT: hm. ACTION: {command}")

        return act


class TestHouseholdTasks(PromptSourceConformance):
    @pytest.fixture
    def component(self) -> Subject:
        held_out = {"size": 8, "split": "held_out", "seed": 3, "kinds": ["puttwo"]}
        return installed("prompt_source", "household_tasks", {"size": 20}, held_out)
