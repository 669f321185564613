"""The engine suite on a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from astraflow_testing.conformance.engine import EngineConformance, Subject, installed

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


class TestTorchOnGpu(EngineConformance):
    deadline_s = 60.0

    @pytest.fixture
    def component(self) -> Subject:
        keys = {"device": "cuda", "dtype": "float32", "cache_gb": 0.25}
        found = installed("engine", "torch", keys)
        # `test_conformance.py` shows these; what they do on a GPU, the transports' own tests.
        elsewhere = {"lora", "weights.ipc", "weights.collective"}
        return replace(found, capabilities=found.capabilities - elsewhere)
