"""What a worker does to receive from a trainer's GPU, on any machine."""

from __future__ import annotations

import base64
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from astraflow_plugin_vllm.workers import received  # noqa: E402
from astraflow_torch_weights.fake_cuda import FakeCuda  # noqa: E402

GPU = torch.device("cuda", 0)
LAYOUT = received.BufferLayout([("a", "U8", [4], 0, 4)], "")
MEMORY = {
    "handle": base64.b64encode(b"handle").decode(), "size": 64, "offset": 8,
    "counter_handle": base64.b64encode(b"counter").decode(), "counter_offset": 2,
    "event_handle": base64.b64encode(b"event").decode(), "event_sync_required": True,
}  # fmt: skip


def test_a_broadcast_is_awaited_on_its_stream() -> None:
    class Group:
        def broadcast(self, buffer: Any, src: int, stream: str) -> None:
            cuda.asked.append(("broadcast", src, stream))
            buffer.copy_(torch.arange(4, dtype=torch.uint8))

    with FakeCuda() as cuda:
        found = received.broadcast(Group(), LAYOUT, GPU)
    assert found.tolist() == [0, 1, 2, 3]
    assert cuda.asked == [("broadcast", 0, "stream of cuda:0"), ("synchronize", "cuda:0")]


def test_memory_is_mapped_by_its_handles(monkeypatch: pytest.MonkeyPatch) -> None:
    def new_shared(*handles: Any) -> Any:
        assert handles == (0, b"handle", 64, 8, b"counter", 2, b"event", True)
        return torch.arange(64, dtype=torch.uint8).untyped_storage()

    monkeypatch.setattr(torch.UntypedStorage, "_new_shared_cuda", new_shared, raising=False)
    with FakeCuda():
        assert received.mapped(MEMORY, LAYOUT, GPU).tolist() == [0, 1, 2, 3]


def test_only_a_gpu_is_waited_for() -> None:
    with FakeCuda() as cuda:
        received.settle(torch.device("cpu"))
        received.settle(GPU)
    assert cuda.asked == [("synchronize", "cuda:0")]
