"""On which device tensors are shared with the server, on any machine."""

from __future__ import annotations

import pytest
import torch

from astraflow_core.errors import UserError
from astraflow_plugin_sglang.sharing import gpu
from astraflow_torch_weights.fake_cuda import FakeCuda


def test_tensors_are_shared_on_the_current_device() -> None:
    with FakeCuda():
        assert gpu() == torch.device("cuda", 0)
    with FakeCuda(devices=0), pytest.raises(UserError, match="shares memory of a GPU and finds"):
        gpu()
