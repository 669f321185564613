"""``word_chain`` keeps what every environment promises."""

from __future__ import annotations

import random

import pytest

from astraflow_core.types import Action, Observation, Prompt
from astraflow_testing.conformance.environment import Acts, EnvironmentConformance
from astraflow_testing.conformance.manifest import ManifestConformance
from astraflow_testing.conformance.subject import Subject, installed


class TestManifest(ManifestConformance):
    @pytest.fixture
    def manifest(self) -> str:
        return "astraflow_plugin_word_chain.manifest"


class TestWordChain(EnvironmentConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("environment", "word_chain", {}, {"turns": 2})

    @pytest.fixture
    def tasks(self) -> list[Prompt]:
        return [Prompt("one", {"words": ["tree", "edge"]}), Prompt("two", {"words": ["owl"]})]

    @pytest.fixture
    def acts(self) -> Acts:
        def reply(observation: Observation, generator: random.Random) -> Action:
            return Action(generator.choice(["eel", "lime", "ever", "??"]))

        return reply
