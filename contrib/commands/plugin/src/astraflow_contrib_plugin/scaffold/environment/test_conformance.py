"""``sample_thing`` keeps what every environment promises."""

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
        return "astraflow_plugin_sample_thing.manifest"


class TestSampleThing(EnvironmentConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("environment", "sample_thing", {}, {"numbers": 9, "turns": 2})

    @pytest.fixture
    def tasks(self) -> list[Prompt]:
        return [Prompt("one", {}), Prompt("two", {})]

    @pytest.fixture
    def acts(self) -> Acts:
        def reply(observation: Observation, generator: random.Random) -> Action:
            return Action(generator.choice(["1", "2", "7", "??"]))

        return reply
