"""``sample_thing`` keeps what every data policy promises."""

from __future__ import annotations

import pytest

from astraflow_testing.conformance.data_policy import DataPolicyConformance
from astraflow_testing.conformance.manifest import ManifestConformance
from astraflow_testing.conformance.subject import Subject, installed


class TestManifest(ManifestConformance):
    @pytest.fixture
    def manifest(self) -> str:
        return "astraflow_plugin_sample_thing.manifest"


class TestSampleThing(DataPolicyConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("data_policy", "sample_thing", {}, {"least_spread": 0.5})
