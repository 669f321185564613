"""``sample_thing`` keeps what every workflow promises."""

from __future__ import annotations

import pytest

from astraflow_testing.conformance.manifest import ManifestConformance
from astraflow_testing.conformance.subject import Subject, installed
from astraflow_testing.conformance.workflow import WorkflowConformance


class TestManifest(ManifestConformance):
    @pytest.fixture
    def manifest(self) -> str:
        return "astraflow_plugin_sample_thing.manifest"


class TestSampleThing(WorkflowConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("workflow", "sample_thing", {}, {"instruction": "Say:"})
