"""The engine suite on a real vLLM server with a GPU: the GPU build, CUDA graphs, and sleep."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import xxhash

from astraflow_core.errors import WeightsError
from astraflow_core.types import Sampling, TensorSpec
from astraflow_plugin_vllm.config import VllmConfig
from astraflow_plugin_vllm.engine import VllmEngine
from astraflow_plugin_vllm.manifest import astraflow_engines
from astraflow_plugin_vllm.server import VllmServer
from astraflow_serving.buckets import Bucket, DeviceMemory, Rendezvous
from astraflow_serving.child_server import free_port
from astraflow_serving.model_folder import specs_of
from astraflow_testing.conformance.engine import EngineConformance, Subject

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(2000)]
KEYS: dict[str, Any] = {
    "dtype": "float32", "sleep_mode": True, "max_batch": 64, "gpu_memory_utilization": 0.3,
}  # fmt: skip


@pytest.fixture(scope="module")
def gpu_server(
    environment: str,
    exact_float32: None,
    tmp_path_factory: pytest.TempPathFactory,
    write_model: Callable[..., Path],
    kept: Callable[[VllmServer], Iterator[VllmServer]],
) -> Iterator[VllmServer]:
    folder = tmp_path_factory.mktemp("server")
    model = write_model(folder / "model", head_dim=64)
    config = VllmConfig(**KEYS)
    yield from kept(VllmServer(config, model, folder / "vllm.log", 0, environment, cpu=False))


def packed(file: Path) -> tuple[tuple[TensorSpec, ...], bytes]:
    """The tensors of a file, end to end."""
    whole, specs, parts, end = file.read_bytes(), [], [], 0
    for spec in specs_of(file):
        parts.append(whole[spec.start : spec.end])
        start, end = end, end + len(parts[-1])
        specs.append(replace(spec, start=start, end=end))
    return tuple(specs), b"".join(parts)


class TestVllmOnGpu(EngineConformance):
    deadline_s = 60.0
    own_tests: ClassVar[dict[str, str]] = {
        "weights.ipc": "test_a_version_comes_out_of_another_processs_memory",
        "weights.collective": "test_a_version_comes_by_a_broadcast",
    }

    def test_a_version_comes_out_of_another_processs_memory(
        self, run: Any, examiner: Any, other: Path
    ) -> None:
        torch = pytest.importorskip("torch")
        specs, data = packed(other)
        buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8).to("cuda:0")
        _, *shared = buffer.untyped_storage()._share_cuda_()
        good = Bucket(specs, xxhash.xxh3_128_hexdigest(data), DeviceMemory(*shared))

        async def scenario(served: Any) -> None:
            await served.engine.pause("keep")
            with pytest.raises(WeightsError, match="version 0 is loaded again"):
                await served.engine.receive(1, [replace(good, digest="0" * 32)])
            await served.engine.receive(1, [good])
            await served.engine.resume()
            request, result = await served.generate(Sampling(16, ignore_eos=True))
            assert set(result.versions.tolist()) == {1}
            examiner(served).examine(request, result)

        run(scenario)

    def test_a_version_comes_by_a_broadcast(
        self, run: Any, examiner: Any, other: Path, environment: str, tmp_path: Path
    ) -> None:
        torch = pytest.importorskip("torch")
        if torch.cuda.device_count() < 2:
            pytest.skip("NCCL wants a GPU for each rank, so two here")
        specs, data = packed(other)
        (tmp_path / "bytes").write_bytes(data)
        bucket = Bucket(specs, xxhash.xxh3_128_hexdigest(data))
        port = free_port(None)

        async def scenario(served: Any) -> None:
            script = Path(__file__).with_name("trainer_of_broadcast.py")
            command = [environment, str(script), str(port), str(tmp_path / "bytes")]
            trainer = subprocess.Popen(command)
            try:
                await served.engine.join(Rendezvous("127.0.0.1", port, 1, 2))
                await served.engine.pause("keep")
                await served.engine.receive(1, [bucket])
                await served.engine.resume()
                request, result = await served.generate(Sampling(16, ignore_eos=True))
                assert set(result.versions.tolist()) == {1}
                examiner(served).examine(request, result)
            finally:
                trainer.kill()
                trainer.wait(10)

        run(scenario)

    @pytest.fixture
    def component(self, gpu_server: VllmServer) -> Subject:
        config = VllmConfig(url=gpu_server.url, **KEYS)
        (described,) = astraflow_engines()
        return Subject(
            {"vllm on a GPU": lambda context: VllmEngine(config, context)},
            described.capabilities
            - {"lora", "adapters", "images"},  # not what this server was started for
        )

    @pytest.fixture
    def model(self, tmp_path: Path, write_model: Callable[..., Path]) -> Path:
        return write_model(tmp_path / "model", head_dim=64)

    @pytest.fixture
    def other(self, tmp_path: Path, write_model: Callable[..., Path]) -> Path:
        return write_model(tmp_path / "other", seed=1, head_dim=64) / "model.safetensors"
