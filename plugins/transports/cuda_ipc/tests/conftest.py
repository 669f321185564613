from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from host_memory_stand_in import HostMemoryStandIn


@pytest.fixture(autouse=True)
def stand_in(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("gpu") is None:
        monkeypatch.setattr("astraflow_plugin_cuda_ipc.gpu_buffer.GpuBuffer", HostMemoryStandIn)
