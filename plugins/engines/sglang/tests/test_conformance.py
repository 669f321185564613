"""The engine suite against a stand-in for SGLang's protocol (see ``conftest``); `test_gpu.py` runs it against
the real server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from astraflow_core.testing.conformance.engine import EngineConformance, Subject, installed
from astraflow_core.testing.conformance.manifest import ManifestConformance


class TestManifest(ManifestConformance):
    @pytest.fixture
    def manifest(self) -> str:
        return "astraflow_plugin_sglang.manifest"


class TestSGLangOnAProtocolStandIn(EngineConformance):
    @pytest.fixture
    def component(self, serving: Callable[[Path], Any], model: Path) -> Subject:
        return installed("engine", "sglang", {"url": serving(model).url})
