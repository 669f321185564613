"""The engine suite on a real vLLM server with a GPU: the GPU build, CUDA graphs, and sleep."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from astraflow_core.testing.conformance.engine import EngineConformance, Subject
from astraflow_plugin_vllm.config import VllmConfig
from astraflow_plugin_vllm.engine import VllmEngine
from astraflow_plugin_vllm.manifest import astraflow_engines
from astraflow_plugin_vllm.server import VllmServer

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(2000)]
KEYS: dict[str, Any] = {
    "dtype": "float32", "sleep_mode": True, "max_batch": 64, "gpu_memory_utilization": 0.3,
}  # fmt: skip


@pytest.fixture(scope="module")
def gpu_server(
    environment: str,
    tmp_path_factory: pytest.TempPathFactory,
    write_model: Callable[..., Path],
    kept: Callable[[VllmServer], Iterator[VllmServer]],
) -> Iterator[VllmServer]:
    folder = tmp_path_factory.mktemp("server")
    model = write_model(folder / "model", head_dim=64)
    config = VllmConfig(**KEYS)
    yield from kept(VllmServer(config, model, folder / "vllm.log", 0, environment, cpu=False))


class TestVllmOnGpu(EngineConformance):
    deadline_s = 60.0

    @pytest.fixture
    def component(self, gpu_server: VllmServer) -> Subject:
        config = VllmConfig(url=gpu_server.url, **KEYS)
        (described,) = astraflow_engines()
        return Subject(
            {"vllm on a GPU": lambda context: VllmEngine(config, context)}, described.capabilities
        )

    @pytest.fixture
    def model(self, tmp_path: Path, write_model: Callable[..., Path]) -> Path:
        return write_model(tmp_path / "model", head_dim=64)

    @pytest.fixture
    def other(self, tmp_path: Path, write_model: Callable[..., Path]) -> Path:
        return write_model(tmp_path / "other", seed=1, head_dim=64) / "model.safetensors"
