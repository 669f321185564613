from __future__ import annotations

import pytest

from astraflow_core.testing.conformance.engine import EngineConformance, EngineSubject
from astraflow_plugin_torch_engine import manifest
from astraflow_plugin_torch_engine.config import TorchEngineConfig
from astraflow_plugin_torch_engine.engine import TorchEngine


class TestTorchEngine(EngineConformance):
    @pytest.fixture
    def subject(self) -> EngineSubject:
        (component,) = manifest.astraflow_engines()
        return EngineSubject(TorchEngine, TorchEngineConfig(device="cpu"), component.capabilities)
