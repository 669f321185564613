"""The engine suite on a real SGLang server on CPU: all of it is SGLang's but the compiled kernels, for which PyTorch is used
(``kernels_for_cpu``). Needs the wheel unpacked (``SGLANG_SOURCES``, see ``sglang_behaviours``) and an interpreter with PyTorch
for CPUs and what SGLang imports (``SGLANG_CPU_PYTHON``); the README has the commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from real_server import BY_HAND, OnRealServer, running_on_cpu
from sglang_recomputed import recomputed

from astraflow_testing.conformance.engine import (
    EngineConformance,
    Reference,
)

pytestmark = [pytest.mark.backend, *BY_HAND]


class OnCpu(OnRealServer):
    shape: ClassVar = {"hidden": 32}
    keys: ClassVar[dict[str, Any]] = {"max_batch": 64}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One server for all ways of an update."""
    folder = tmp_path_factory.mktemp("sglang")
    with running_on_cpu(OnCpu.write_model(folder / "model"), max_batch=64) as url:
        yield url


class TestSGLangOnCpu(OnCpu, EngineConformance):
    pass


class TestSGLangOnCpuByBroadcast(OnCpu, EngineConformance):
    keys: ClassVar = {**OnCpu.keys, "update": "distributed", "chunk_mb": 1}


class TestSGLangOnCpuRetracting(OnCpu, EngineConformance):
    keys: ClassVar = {**OnCpu.keys, "keep": "retract"}

    @pytest.fixture
    def reference(self, model: Path) -> Reference:
        return recomputed(model)
