"""The engine suite on a real SGLang server on CPU: all of it is SGLang's but the compiled kernels, for which PyTorch is used
(``kernels_for_cpu``). Needs the wheel unpacked (``SGLANG_SOURCES``, see ``sglang_behaviours``) and an interpreter with PyTorch
for CPUs and what SGLang imports (``SGLANG_CPU_PYTHON``); the README has the commands."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from sglang_recomputed import recomputed

from astraflow_plugin_sglang.config import SGLangConfig
from astraflow_plugin_sglang.server import sglang_server
from astraflow_testing.conformance.engine import (
    EngineConformance,
    Reference,
    Subject,
    installed,
)
from astraflow_tiny_model.folder import write_tiny_model

pytestmark = [
    pytest.mark.backend,
    pytest.mark.timeout(2000),
    pytest.mark.skipif(
        not {"SGLANG_SOURCES", "SGLANG_CPU_PYTHON"} <= os.environ.keys(),
        reason="SGLANG_SOURCES and SGLANG_CPU_PYTHON name no SGLang for CPUs",
    ),
]
START_S = 600.0
ARGUMENTS = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
    *("--max-total-tokens", "8192", "--sleep-on-idle"),
)


def write_model(folder: Path, seed: int = 0) -> Path:
    return write_tiny_model(folder, hidden=32, init_std=0.3, context=2048, seed=seed)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One server for all ways of an update. Its process belongs to a loop, and tests each have their own."""
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
        child = sglang_server(config, write_model(folder / "model"), folder / "sglang.log", 0)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(child.start(), loop).result(START_S + 10)
        yield child.url
    finally:
        asyncio.run_coroutine_threadsafe(child.stop(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


class OnCpu:
    keys: ClassVar[dict[str, Any]] = {}
    deadline_s = 120.0

    @pytest.fixture
    def component(self, server: str) -> Subject:
        return installed("engine", "sglang", {"url": server, "max_batch": 64, **self.keys})

    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        return write_model(tmp_path / "model")

    @pytest.fixture
    def other(self, tmp_path: Path) -> Path:
        return write_model(tmp_path / "other", seed=1) / "model.safetensors"


class TestSGLangOnCpu(OnCpu, EngineConformance):
    pass


class TestSGLangOnCpuByBroadcast(OnCpu, EngineConformance):
    keys: ClassVar = {"update": "distributed", "chunk_mb": 1}


class TestSGLangOnCpuRetracting(OnCpu, EngineConformance):
    keys: ClassVar = {"keep": "retract"}

    @pytest.fixture
    def reference(self, model: Path) -> Reference:
        return recomputed(model)
