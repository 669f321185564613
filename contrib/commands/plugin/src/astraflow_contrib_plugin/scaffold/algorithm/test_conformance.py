"""``sample_thing`` keeps what every algorithm promises."""

from __future__ import annotations

import pytest

from astraflow_testing.conformance.algorithm import AlgorithmConformance
from astraflow_testing.conformance.manifest import ManifestConformance
from astraflow_testing.conformance.subject import Subject, installed


class TestManifest(ManifestConformance):
    @pytest.fixture
    def manifest(self) -> str:
        return "astraflow_plugin_sample_thing.manifest"


class TestSampleThing(AlgorithmConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("algorithm", "sample_thing", {}, {"ratio_cap": 1.5})
