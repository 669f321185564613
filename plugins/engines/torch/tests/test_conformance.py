from __future__ import annotations

import pytest

from astraflow_core.testing.conformance.engine import EngineConformance, Subject, installed


class TestTorchEngine(EngineConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("engine", "torch", {"device": "cpu"})
