from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
import torch

from astraflow_testing.conformance._transports import tensors
from astraflow_testing.conformance._transports.transport_checks import publish
from astraflow_testing.conformance.transport import TransportConformance
from astraflow_torch_weights.buckets import receive, tensors_of
from astraflow_torch_weights.group import follow


class TestCollective(TransportConformance):
    own_tests: ClassVar[Mapping[str, str]] = {
        "collective": "test_a_place_in_the_broadcast_brings_every_tensor",
        "plain_text": "test_a_place_in_the_broadcast_brings_every_tensor",  # whoever follows has no certificate
    }

    @pytest.fixture
    def table(self) -> Mapping[str, Any]:
        return {"use": "collective", "window_s": 0.2, "bucket_mb": 1}

    def test_a_place_in_the_broadcast_brings_every_tensor(self, rig: Any) -> None:
        receiver = rig.receiver()
        for version, published in ((1, tensors.every_dtype(1)), (2, tensors.model(2))):
            told = publish(rig.publisher(), version, published)
            delivery = receiver.meet(told, "engine", 1, 20)
            assert len(delivery.buckets) == (1 if version == 1 else 3)
            group = follow(delivery.rendezvous, 0, 20)
            buffers = receive(group, version, delivery.buckets, torch.device("cpu"))
            group.close()
            found = dict(tensors_of(delivery.buckets, buffers))
            assert {
                name: (tuple(t.shape), t.reshape(-1).view(torch.uint8).numpy().tobytes())
                for name, t in found.items()
            } == {t.name: (t.shape, tensors.bytes_of(t)) for t in published}
