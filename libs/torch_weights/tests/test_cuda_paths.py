"""What is done for buffers on a GPU, on any machine."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from astraflow_core.errors import UserError, WeightsError
from astraflow_core.types import DeviceMemory, Rendezvous
from astraflow_torch_weights.device import engine_device
from astraflow_torch_weights.fake_cuda import FakeCuda
from astraflow_torch_weights.group import BroadcastGroup, GroupRendezvous, follow
from astraflow_torch_weights.memory import export, mapped

pytestmark = pytest.mark.timeout(60)
HOST = "127.0.0.1"
ON_GPU: Any = SimpleNamespace(is_cuda=True, device="cuda:1")


def group_that_notes(asked: list[tuple[Any, ...]]) -> BroadcastGroup:
    work = SimpleNamespace(wait=lambda left: asked.append(("wait",)))

    def broadcast(buffers: list[Any], options: Any) -> Any:
        asked.append(("broadcast", *(buffer.device for buffer in buffers)))
        return work

    group = SimpleNamespace(broadcast=broadcast)
    return BroadcastGroup(group, None, 0, 2, time.monotonic() + 5)


def test_a_broadcast_returns_when_the_device_has_it() -> None:
    with FakeCuda() as cuda:
        group_that_notes(cuda.asked).broadcast(ON_GPU)
    assert cuda.asked == [("broadcast", "cuda:1"), ("wait",), ("synchronize", "cuda:1")]


def test_what_the_device_says_late_interrupts_the_broadcast() -> None:
    with FakeCuda() as cuda, pytest.raises(WeightsError, match="was interrupted: unhandled"):
        cuda.fails["synchronize"] = RuntimeError("unhandled cuda error")
        group_that_notes(cuda.asked).broadcast(ON_GPU)


def test_groups_of_nccl_meet_and_have_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    class NcclOverGloo:
        class Options:
            _timeout: Any = None

        def __new__(cls, store: Any, rank: int, size: int, options: Any) -> Any:  # type: ignore[misc]
            limits.append(options._timeout.total_seconds())
            gloo = dist.ProcessGroupGloo._Options()
            gloo._timeout = options._timeout
            gloo._devices = [dist.ProcessGroupGloo.create_device(hostname=HOST)]
            return dist.ProcessGroupGloo(store, rank, size, gloo)

    limits: list[float] = []
    monkeypatch.setattr(dist, "ProcessGroupNCCL", NcclOverGloo, raising=False)
    meeting = GroupRendezvous(HOST, HOST, time.monotonic() + 30)

    def receive() -> list[float]:
        with closing(follow(Rendezvous(HOST, meeting.port, 1, 2), 0, 30)) as group:
            buffer = torch.zeros(3)
            group.broadcast(buffer)
            group.report()
        return buffer.tolist()

    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(receive)
        with closing(meeting.lead({1: "engine"}, "nccl")) as group:
            group.broadcast(torch.tensor([1.0, 2.0, 3.0]))
            assert group.outcomes({1: "engine"}) == {"engine": "ok"}
        assert received.result(30) == [1.0, 2.0, 3.0]
    assert len(limits) == 2 and all(0 < limit <= 30 for limit in limits)


HANDLES = (b"handle", 64, 8, b"counter", 2, b"event", True)


def test_memory_of_another_process_is_mapped_by_its_handles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = torch.arange(64, dtype=torch.uint8)

    def new_shared(device: int, *handles: Any) -> torch.UntypedStorage:
        assert (device, handles) == (1, HANDLES)
        return held.untyped_storage()

    monkeypatch.setattr(torch.UntypedStorage, "_new_shared_cuda", new_shared, raising=False)
    with FakeCuda(2):
        found = mapped(DeviceMemory(*HANDLES), 5, torch.device("cuda", 1))
    assert found.tolist() == [0, 1, 2, 3, 4]
    held[0] = 9
    assert found[0] == 9, "a view, not a copy"

    def refused(*_: Any) -> Any:
        raise RuntimeError("invalid device context")

    monkeypatch.setattr(torch.UntypedStorage, "_new_shared_cuda", refused, raising=False)
    with pytest.raises(WeightsError, match="cannot be mapped on cuda: invalid device context"):
        mapped(DeviceMemory(*HANDLES), 5, torch.device("cuda"))
    with pytest.raises(WeightsError, match="cannot be mapped on 'cpu': use a transport"):
        mapped(DeviceMemory(*HANDLES), 5, torch.device("cpu"))


def test_handles_of_a_buffer_are_those_of_its_storage() -> None:
    storage = SimpleNamespace(_share_cuda_=lambda: (0, *HANDLES))
    buffer: Any = SimpleNamespace(untyped_storage=lambda: storage)
    assert export(buffer) == DeviceMemory(*HANDLES)


def test_an_engine_runs_on_a_gpu_where_there_is_one() -> None:
    with FakeCuda():
        found = [str(engine_device("torch", name)) for name in ("auto", "cuda:1", "cpu")]
        assert found == ["cuda", "cuda:1", "cpu"]
    with FakeCuda(devices=0):
        assert engine_device("torch", "auto").type == "cpu"
        with pytest.raises(UserError, match="engine 'hf': device 'cuda' is not present; use 'cpu'"):
            engine_device("hf", "cuda")
