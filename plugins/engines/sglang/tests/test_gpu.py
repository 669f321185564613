"""The engine suite on a real SGLang server, started as the engine starts it: the only proof that the stand-in stands
for it. Needs a GPU and SGLang, in this interpreter or in the one that the variable SGLANG_PYTHON names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from real_server import START_S, OnRealServer, running
from sglang_recomputed import recomputed

from astraflow_plugin_sglang.config import SGLangConfig
from astraflow_plugin_sglang.server import sglang_server
from astraflow_testing.conformance.engine import (
    EngineConformance,
    Reference,
)

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(2000)]


class OnGpu(OnRealServer):
    """With heads of a size that SGLang's attention kernels have."""

    shape: ClassVar = {"hidden": 64, "head_dim": 64}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One server for all ways of an update."""
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
        child = sglang_server(config, OnGpu.write_model(folder / "model"), folder / "sglang.log", 0)
    with running(child) as url:
        yield url


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
