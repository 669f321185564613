from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
import torch
from host_memory_stand_in import HostMemoryStandIn, map_stand_in

from astraflow_testing.conformance._transports import tensors
from astraflow_testing.conformance._transports.transport_checks import publish
from astraflow_testing.conformance.transport import TransportConformance
from astraflow_torch_weights.buckets import opened, tensors_of


class TestCudaIpc(TransportConformance):
    """The flag ``ipc`` with memory of the host in the place of the GPU's; ``test_gpu.py`` has the real one."""

    own_tests: ClassVar[Mapping[str, str]] = {
        "ipc": "test_memory_that_is_mapped_holds_every_tensor"
    }

    @pytest.fixture
    def table(self) -> Mapping[str, Any]:
        return {"use": "cuda_ipc", "bucket_mb": 1}

    def test_memory_that_is_mapped_holds_every_tensor(self, rig: Any) -> None:
        receiver = rig.receiver()
        for published in (tensors.every_dtype(1), tensors.model(2)):
            publisher = rig.publisher()
            told = publish(publisher, 1, published)
            delivery = receiver.meet(told, "engine", 0, 20)
            assert delivery.rendezvous is None and HostMemoryStandIn.held
            buffers = opened(1, delivery.buckets, torch.device("cpu"), map_stand_in)
            found = dict(tensors_of(delivery.buckets, buffers))
            assert {
                name: (tuple(t.shape), t.reshape(-1).view(torch.uint8).numpy().tobytes())
                for name, t in found.items()
            } == {t.name: (t.shape, tensors.bytes_of(t)) for t in published}
            receiver.done(told, delivery)
            assert not HostMemoryStandIn.held, "memory goes when the last ticket is given back"
