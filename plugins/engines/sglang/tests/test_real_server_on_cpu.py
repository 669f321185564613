"""The engine suite on a real SGLang server on CPU: all of it is SGLang's but the compiled kernels, for which PyTorch is used
(``kernels_for_cpu``). Needs the wheel unpacked (``SGLANG_SOURCES``, see ``sglang_behaviours``) and an interpreter with PyTorch
for CPUs and what SGLang imports (``SGLANG_CPU_PYTHON``); the README has the commands."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from real_server import START_S, OnRealServer, running
from sglang_recomputed import recomputed

from astraflow_plugin_sglang.config import SGLangConfig
from astraflow_plugin_sglang.server import sglang_server
from astraflow_testing.conformance.engine import (
    EngineConformance,
    Reference,
)

pytestmark = [
    pytest.mark.backend,
    pytest.mark.timeout(2000),
    pytest.mark.skipif(
        not {"SGLANG_SOURCES", "SGLANG_CPU_PYTHON"} <= os.environ.keys(),
        reason="SGLANG_SOURCES and SGLANG_CPU_PYTHON name no SGLang for CPUs",
    ),
]
ARGUMENTS = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
    *("--max-total-tokens", "8192", "--sleep-on-idle"),
)


class OnCpu(OnRealServer):
    shape: ClassVar = {"hidden": 32}
    keys: ClassVar[dict[str, Any]] = {"max_batch": 64}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One server for all ways of an update."""
    folder = tmp_path_factory.mktemp("sglang")
    config = SGLangConfig(
        server_python=os.environ["SGLANG_CPU_PYTHON"],
        dtype="float32",
        max_batch=64,
        arguments=ARGUMENTS,
        start_deadline_s=START_S,
    )
    kernels = Path(__file__).with_name("kernels_for_cpu")
    found = filter(
        None, [*map(str, (kernels, os.environ["SGLANG_SOURCES"])), os.environ.get("PYTHONPATH")]
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SGLANG_USE_CPU_ENGINE", "1")
        patch.setenv("PYTHONPATH", os.pathsep.join(found))
        child = sglang_server(config, OnCpu.write_model(folder / "model"), folder / "sglang.log", 0)
    with running(child) as url:
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
