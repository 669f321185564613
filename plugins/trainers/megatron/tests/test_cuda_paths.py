"""Where a rank computes and how ranks meet, on any machine."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("megatron.core")
import torch.distributed as dist  # noqa: E402

from astraflow_core.types import Ranks  # noqa: E402
from astraflow_plugin_megatron.config import MegatronConfig  # noqa: E402
from astraflow_plugin_megatron.ranks import Mesh  # noqa: E402
from astraflow_torch_weights.fake_cuda import FakeCuda  # noqa: E402

pytestmark = pytest.mark.backend


class Reached(Exception):
    """Ends a test at the call under test, since there is no device to continue with."""


@pytest.mark.parametrize(("device", "backend"), [("cuda", "nccl"), ("cpu", "gloo")])
def test_a_rank_takes_the_device_of_its_number_and_meets_the_others(
    monkeypatch: pytest.MonkeyPatch, device: str, backend: str
) -> None:
    met: list[Any] = []

    def init_process_group(backend: str, **_: Any) -> None:
        met.append(backend)
        raise Reached

    monkeypatch.setattr(Mesh, "_open", 0)
    monkeypatch.setattr(dist, "init_process_group", init_process_group)
    with FakeCuda(2) as cuda, pytest.raises(Reached):
        Mesh(MegatronConfig(device=device), Ranks(local=1), seed=0)
    assert met == [backend]
    assert cuda.asked == ([("set_device", "cuda:1")] if device == "cuda" else [])
