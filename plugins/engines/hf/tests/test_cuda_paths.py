"""Which device the engine takes, on any machine."""

from __future__ import annotations

import pytest

from astraflow_core.errors import UserError
from astraflow_plugin_hf.batching import _device
from astraflow_torch_weights.fake_cuda import FakeCuda


def test_the_device_is_a_gpu_where_there_is_one() -> None:
    with FakeCuda():
        assert (_device("auto"), _device("cuda:1"), _device("cpu")) == ("cuda", "cuda:1", "cpu")
    with FakeCuda(devices=0):
        assert _device("auto") == "cpu"
        with pytest.raises(UserError, match="device 'cuda' is not present; use 'cpu' or 'auto'"):
            _device("cuda")
