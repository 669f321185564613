"""The engine suite on a real SGLang server, started as the engine starts it: the only proof that the stand-in stands
for it. Needs a GPU and SGLang, in this interpreter or in the one that the variable SGLANG_PYTHON names."""

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

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(2000)]
START_S = 600.0


def write_model(folder: Path, seed: int = 0) -> Path:
    """The suite's model, with heads of a size that SGLang's attention kernels have."""
    return write_tiny_model(
        folder, hidden=64, head_dim=64, init_std=0.3, context=2048, seed=seed
    )  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One server for all ways of an update. Its process belongs to a loop, and tests each have their own."""
    folder = tmp_path_factory.mktemp("sglang")
    config = SGLangConfig(
        server_python=os.environ.get("SGLANG_PYTHON"),
        dtype="float32",
        memory_fraction=0.3,
        arguments=(
            "--attention-backend",
            "triton",
            "--sampling-backend",
            "pytorch",
        ),  # know float32
        start_deadline_s=START_S,
    )
    with pytest.MonkeyPatch.context() as patch:
        # Else attention multiplies float32 as TF32, and log-probs are off by more than the suite allows.
        patch.setenv("TRITON_F32_DEFAULT", "ieee")
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


class OnGpu:
    keys: ClassVar[dict[str, Any]] = {}
    deadline_s = 120.0

    @pytest.fixture
    def component(self, server: str) -> Subject:
        return installed("engine", "sglang", {"url": server, **self.keys})

    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        return write_model(tmp_path / "model")

    @pytest.fixture
    def other(self, tmp_path: Path) -> Path:
        return write_model(tmp_path / "other", seed=1) / "model.safetensors"


class TestSGLangOnGpu(OnGpu, EngineConformance):
    pass


class TestSGLangOnGpuByTensors(OnGpu, EngineConformance):
    keys: ClassVar = {"update": "tensor", "chunk_mb": 1}


class TestSGLangOnGpuByBroadcast(OnGpu, EngineConformance):
    keys: ClassVar = {"update": "distributed", "chunk_mb": 1}


class TestSGLangOnGpuRetracting(OnGpu, EngineConformance):
    keys: ClassVar = {"keep": "retract"}

    @pytest.fixture
    def reference(self, model: Path) -> Reference:
        return recomputed(model)
