"""What is broadcast by NCCL, on any machine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from astraflow_plugin_collective.round import backend_of, send
from astraflow_torch_weights.fake_cuda import FakeCuda


def test_nccl_is_chosen_where_there_is_a_gpu() -> None:
    with FakeCuda():
        assert (backend_of("auto"), backend_of("gloo")) == ("nccl", "gloo")
    with FakeCuda(devices=0):
        assert (backend_of("auto"), backend_of("nccl")) == ("gloo", "nccl")


def test_nccl_is_given_a_buffer_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu = torch.tensor([1, 2], dtype=torch.uint8)
    moved: list[bytes] = []

    def cuda(buffer: torch.Tensor) -> torch.Tensor:
        moved.append(bytes(buffer.numpy()))
        return on_gpu

    monkeypatch.setattr(torch.Tensor, "cuda", cuda)
    sent: list[Any] = []
    group: Any = SimpleNamespace(broadcast=sent.append)
    data = bytearray(b"weights!")
    send(group, memoryview(data), "nccl")
    send(group, memoryview(data), "gloo")
    data[:] = b"changed!"
    assert moved == [b"weights!"] and sent[0] is on_gpu
    assert bytes(sent[1].numpy()) == b"weights!", "a copy"
