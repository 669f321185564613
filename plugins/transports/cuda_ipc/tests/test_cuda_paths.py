"""What a buffer on the trainer's GPU asks of the device, on any machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from astraflow_core.types import DeviceMemory
from astraflow_plugin_cuda_ipc import gpu_buffer
from astraflow_plugin_cuda_ipc.gpu_buffer import GpuBuffer
from astraflow_torch_weights.fake_cuda import FakeCuda


@pytest.fixture
def cuda() -> Iterator[FakeCuda]:
    with FakeCuda(devices=2) as fake:
        yield fake


def test_a_buffer_is_whole_before_it_is_offered_and_gives_its_memory_back(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    handles = DeviceMemory(b"handle", 8, 0, b"counter", 0, b"event", True)
    exported: list[torch.Tensor] = []

    def export(tensor: torch.Tensor) -> DeviceMemory:
        exported.append(tensor)
        return handles

    monkeypatch.setattr(gpu_buffer, "export", export)
    data = bytearray(b"weights!")
    buffer = GpuBuffer(memoryview(data), 1)
    assert cuda.asked == [("synchronize", "1")]
    data[:] = b"changed!"
    assert buffer.export() == handles and bytes(exported[0].numpy()) == b"weights!"
    buffer.free()
    assert cuda.asked[1:] == [("ipc_collect",)]
