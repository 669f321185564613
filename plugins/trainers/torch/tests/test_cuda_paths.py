"""What the trainer asks of a GPU, on any machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from astraflow_core.errors import UserError
from astraflow_plugin_torch_trainer import checkpoint, trainer
from astraflow_plugin_torch_trainer.trainer import TorchTrainer
from astraflow_torch_weights.fake_cuda import FakeCuda

GPU = torch.device("cuda", 0)
Build = Callable[..., TorchTrainer]


def test_the_device_is_a_gpu_where_there_is_one() -> None:
    with FakeCuda():
        found = [trainer._device(name) for name in ("auto", "cuda:1", "cpu")]
    assert [str(device) for device in found] == ["cuda", "cuda:1", "cpu"]
    with FakeCuda(devices=0):
        assert trainer._device("auto").type == "cpu"
        with pytest.raises(UserError, match="torch finds no CUDA device"):
            trainer._device("cuda")


def test_a_checkpoint_holds_the_generator_of_the_device(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    with FakeCuda() as cuda:
        saved = cuda.generator.clone()
        checkpoint.save(tmp_path, model, [optimizer], 0)
        cuda.generator.zero_()
        checkpoint.load(tmp_path, model, [optimizer])
        assert cuda.generator.equal(saved)
    with FakeCuda(devices=0) as cuda:
        cuda.generator.zero_()
        checkpoint.load(tmp_path, model, [optimizer])
        assert not cuda.generator.any(), "a machine without CUDA has no use for it"


def test_the_memory_of_the_device_is_given_back(build: Build, folder: Path) -> None:
    closed = build(folder)
    with FakeCuda() as cuda:
        closed.close()
    assert cuda.asked == [("empty_cache",)]
