"""``sample_thing`` keeps what every reward promises."""

from __future__ import annotations

import pytest

from astraflow_testing.conformance.manifest import ManifestConformance
from astraflow_testing.conformance.reward import RewardConformance
from astraflow_testing.conformance.subject import Subject, installed


class TestManifest(ManifestConformance):
    @pytest.fixture
    def manifest(self) -> str:
        return "astraflow_plugin_sample_thing.manifest"


class TestSampleThing(RewardConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("reward", "sample_thing", {}, {"ignore_case": True})
