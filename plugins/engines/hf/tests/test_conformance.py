from __future__ import annotations

import pytest

from astraflow_testing.conformance.engine import EngineConformance, Subject, installed
from astraflow_testing.conformance.manifest import ManifestConformance


class TestManifest(ManifestConformance):
    @pytest.fixture
    def manifest(self) -> str:
        return "astraflow_plugin_hf.manifest"


@pytest.mark.slow
class TestHF(EngineConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("engine", "hf", {"device": "cpu", "cache_gb": 0.01, "page_size": 16})
