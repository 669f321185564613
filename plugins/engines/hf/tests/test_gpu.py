"""The engine suite on a GPU."""

from __future__ import annotations

import pytest

from astraflow_testing.conformance.engine import EngineConformance, Subject, installed

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


class TestHFOnGpu(EngineConformance):
    deadline_s = 60.0

    @pytest.fixture
    def component(self) -> Subject:
        keys = {"device": "cuda", "dtype": "float32", "cache_gb": 0.01, "page_size": 16}
        return installed("engine", "hf", keys)
