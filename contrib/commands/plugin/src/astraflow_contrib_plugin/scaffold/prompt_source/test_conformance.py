"""``sample_thing`` keeps what every prompt source promises."""

from __future__ import annotations

import pytest

from astraflow_testing.conformance.manifest import ManifestConformance
from astraflow_testing.conformance.prompt_source import PromptSourceConformance
from astraflow_testing.conformance.subject import Subject, installed


class TestManifest(ManifestConformance):
    @pytest.fixture
    def manifest(self) -> str:
        return "astraflow_plugin_sample_thing.manifest"


class TestSampleThing(PromptSourceConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("prompt_source", "sample_thing", {}, {"below": 12})
