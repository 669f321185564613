from __future__ import annotations

import random

import pytest

from astraflow_core.types import Action, Observation, Prompt
from astraflow_testing.conformance.environment import Acts, EnvironmentConformance, guess
from astraflow_testing.conformance.prompt_source import PromptSourceConformance
from astraflow_testing.conformance.subject import Subject, installed


class TestOpenEnv(EnvironmentConformance):
    @pytest.fixture
    def component(self, url: str) -> Subject:
        text = {"url": url, "fields": ["text"], "instructions": "Guess."}
        forms = ({"url": url, "actions": form, "turns": 6} for form in ("json", "tools", "mcp"))
        return installed("environment", "openenv", text, *forms)

    @pytest.fixture
    def tasks(self) -> list[Prompt]:
        return [Prompt("one", {"seed": 3}), Prompt("two", {"reset": {"high": 5}})]

    @pytest.fixture
    def acts(self) -> Acts:
        def act(observation: Observation, generator: random.Random) -> Action:
            if observation.tools:
                return guess(observation, generator)
            return Action(generator.choice(["1", '{"message": "2"}', "{}", "x"]))

        return act


class TestSeeds(PromptSourceConformance):
    @pytest.fixture
    def component(self) -> Subject:
        held_out = {"size": 5, "split": "held_out", "reset": {"high": 5}}
        return installed("prompt_source", "openenv_seeds", {"size": 10}, held_out)


class TestTasks(PromptSourceConformance):
    @pytest.fixture
    def component(self, url: str) -> Subject:
        few = {"url": url, "task_split": "few", "skip": 1, "size": 1, "reset": {"high": 5}}
        return installed("prompt_source", "openenv_tasks", {"url": url}, few)
