"""The lifetime of offered memory and the messages to engines, with memory of the host in the place of the GPU's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch
from host_memory_stand_in import HostMemoryStandIn, map_stand_in

from astraflow_core.errors import Refused, WeightsError
from astraflow_core.types import ExportedTensor
from astraflow_plugin_cuda_ipc.gpu_buffer import GpuBuffer
from astraflow_plugin_cuda_ipc.offers import Offers
from astraflow_torch_weights.buckets import opened
from astraflow_torch_weights.memory import mapped
from astraflow_weights.snapshot import Snapshot, Snapshotter

CPU = torch.device("cpu")


def snapshot(version: int) -> Snapshot:
    values = np.random.default_rng(version).normal(size=(3, 1000)).astype(np.float32)
    exported = [ExportedTensor(f"w{n}", "F32", (1000,), values[n]) for n in range(3)]
    return Snapshotter("p").take(version, exported, None)


@pytest.fixture
def offers() -> Iterator[Offers]:
    with closing(Offers(HostMemoryStandIn, 5000, 1000)) as made:
        yield made
    assert not HostMemoryStandIn.held


def test_one_copy_serves_all_and_goes_with_the_last(offers: Offers) -> None:
    first = offers.take(snapshot(1))
    segments = set(HostMemoryStandIn.held)
    second = offers.take(snapshot(1))
    assert len(segments) == 3 and set(HostMemoryStandIn.held) == segments
    assert first.ticket != second.ticket
    offers.give_back(first.ticket)
    offers.give_back("unknown")
    assert set(HostMemoryStandIn.held) == segments
    opened(1, second.buckets, CPU, map_stand_in)
    offers.give_back(second.ticket)
    assert not HostMemoryStandIn.held


def test_a_version_that_is_read_keeps_its_memory_when_a_newer_one_comes(offers: Offers) -> None:
    old = offers.take(snapshot(1))
    with pytest.raises(Refused, match="version 1 is still being read"):
        offers.take(snapshot(2))
    opened(1, old.buckets, CPU, map_stand_in)
    offers.give_back(old.ticket)
    assert offers.take(snapshot(2)).version == 2


def test_an_engine_that_says_nothing_loses_its_lease() -> None:
    with closing(Offers(HostMemoryStandIn, 5000, 0)) as offers:
        offers.take(snapshot(1))
        assert offers.take(snapshot(2)).version == 2
        assert len(HostMemoryStandIn.held) == 3
    assert not HostMemoryStandIn.held


def test_a_gpu_without_room_is_a_reason_to_fetch_and_nothing_stays(
    offers: Offers, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = snapshot(1)
    before = HostMemoryStandIn.__init__

    def full(self: HostMemoryStandIn, data: memoryview, device: int = 0) -> None:
        if len(HostMemoryStandIn.held) == 2:
            raise RuntimeError("CUDA out of memory (the stand-in's)")
        before(self, data, device)

    monkeypatch.setattr(HostMemoryStandIn, "__init__", full)
    with pytest.raises(Refused, match="no copy on the GPU: CUDA out of memory"):
        offers.take(taken)
    assert not HostMemoryStandIn.held


def test_a_bit_that_flips_in_memory_is_found(offers: Offers) -> None:
    delivery = offers.take(snapshot(1))
    memory = delivery.buckets[1].memory
    assert memory is not None
    HostMemoryStandIn.held[memory.handle.decode()].buf[77] ^= 8
    with pytest.raises(WeightsError, match="version 1 arrived corrupted: bucket 1 has the digest"):
        opened(1, delivery.buckets, CPU, map_stand_in)
    neither = replace(delivery.buckets[0], memory=None)
    with pytest.raises(WeightsError, match="neither broadcast nor in memory"):
        opened(1, [neither], CPU, map_stand_in)


def test_a_bit_that_flipped_in_the_snapshot_is_not_offered(offers: Offers) -> None:
    taken = snapshot(1)
    taken.data[900] ^= 1
    with pytest.raises(Refused, match="block 0 of version 1 changed in the trainer's memory"):
        offers.take(taken)


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests the message without CUDA")
def test_without_a_gpu_both_sides_say_what_to_use(offers: Offers) -> None:
    with pytest.raises(WeightsError, match="has no CUDA; choose http or shm"):
        GpuBuffer(memoryview(bytearray(8)), 0)
    memory = offers.take(snapshot(1)).buckets[0].memory
    assert memory is not None
    with pytest.raises(WeightsError, match="cannot be mapped on 'cpu'"):
        mapped(memory, 8, CPU)
