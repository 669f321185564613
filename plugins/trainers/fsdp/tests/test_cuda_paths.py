"""What a rank asks of its GPU, on any machine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from astraflow_core.errors import UserError
from astraflow_plugin_fsdp import checkpoint, sharding
from astraflow_plugin_fsdp.config import FsdpConfig
from astraflow_plugin_fsdp.group import join
from astraflow_plugin_fsdp.trainer import FsdpTrainer
from astraflow_testing.conformance.subject import context
from astraflow_torch_weights.fake_cuda import FakeCuda

GPU = torch.device("cuda", 0)


class Reached(Exception):
    """Ends a test at the call under test, since there is no device to continue with."""


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Backend and device with which ranks meet, which ends the call."""
    seen: list[tuple[str, Any]] = []

    def init_process_group(backend: str, device_id: Any, **_: Any) -> None:
        seen.append((backend, device_id))
        raise Reached

    monkeypatch.setattr(dist, "init_process_group", init_process_group)
    return seen


@pytest.mark.parametrize(
    ("device", "keys", "expected"),
    [
        ("auto", {}, ("nccl", GPU)),
        ("cuda", {"cpu_offload": True}, ("cpu:gloo,cuda:nccl", GPU)),
        ("cpu", {}, ("gloo", None)),
    ],
)
def test_a_rank_meets_the_others_by_nccl_on_the_device_of_its_number(
    met: list[Any], device: str, keys: dict[str, Any], expected: Any
) -> None:
    with FakeCuda() as cuda, pytest.raises(Reached):
        join(0, 1, 0, device, 1, 5.0, **keys)
    assert met == [expected]
    assert cuda.asked == ([] if device == "cpu" else [("set_device", "cuda:0")])


def test_more_ranks_than_devices_are_refused(met: list[Any]) -> None:
    with FakeCuda(), pytest.raises(UserError, match="local rank 1 finds 1 CUDA devices"):
        join(1, 2, 1, "auto", 1, 5.0)
    assert not met


def test_a_checkpoint_holds_the_generator_of_each_device() -> None:
    group: Any = SimpleNamespace(rank=3, device=GPU)
    with FakeCuda() as cuda:
        saved = cuda.generator.clone()
        held = checkpoint._generators(group)
        cuda.generator.zero_()
        checkpoint._set_generators(held)
        assert cuda.generator.equal(saved)
    assert sorted(held) == [f"{checkpoint.GENERATORS}/3/{kind}" for kind in ("cpu", "cuda")]
    with FakeCuda(devices=0) as cuda:
        cuda.generator.zero_()
        checkpoint._set_generators(held)
        assert not cuda.generator.any(), "a machine without CUDA has no use for it"


@pytest.mark.parametrize(("device", "pinned"), [(GPU, True), (torch.device("cpu"), False)])
def test_weights_on_the_host_are_pinned_for_a_device(
    monkeypatch: pytest.MonkeyPatch, device: torch.device, pinned: bool
) -> None:
    def policy(pin_memory: bool) -> None:
        assert pin_memory is pinned
        raise Reached

    monkeypatch.setattr(sharding, "CPUOffloadPolicy", policy)
    group: Any = SimpleNamespace(device=device, mesh=SimpleNamespace(size=lambda dimension: 2))
    nothing: Any = None
    with pytest.raises(Reached):
        sharding.shard(nothing, None, group, FsdpConfig(cpu_offload=True))


def test_the_memory_of_the_device_is_given_back(tmp_path: Any) -> None:
    made = FsdpTrainer(FsdpConfig(), context("trainer", tmp_path))
    with FakeCuda() as cuda:
        made.close()
    assert cuda.asked == [("empty_cache",)]
