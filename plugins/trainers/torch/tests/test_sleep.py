"""Turns on a shared device: state that was moved to host memory is restored bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from astraflow_plugin_torch_trainer.config import TorchTrainerConfig
from astraflow_plugin_torch_trainer.trainer import TorchTrainer
from astraflow_testing.conformance._models.trainer_rig import PolicyGradient, ragged_batch, ready
from astraflow_testing.conformance.subject import context
from astraflow_tiny_model.folder import write_tiny_model

KEYS: dict[str, Any] = {"device": "cpu", "lr": 1e-2, "publish_dtype": "float32"}
VARIANTS = [{}, {"offload_weights": True}, {"lora_rank": 2, "offload_weights": True}, {"optimizer": "muon"}]  # fmt: skip
Build = Callable[..., TorchTrainer]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    model = write_tiny_model(tmp_path / "model", hidden=32, init_std=0.2)

    def make(**keys: Any) -> TorchTrainer:
        trainer = TorchTrainer(TorchTrainerConfig(**KEYS | keys), context("trainer", tmp_path))
        trainer.setup(model, total_steps=8, needs=frozenset({"reference"}))
        return trainer

    return make


def step(trainer: TorchTrainer, number: int) -> dict[str, float]:
    algorithm = PolicyGradient()
    return trainer.step(ready(trainer, ragged_batch(), algorithm), algorithm, number)


def saved(trainer: TorchTrainer, folder: Path) -> dict[str, bytes]:
    """Weights, optimizer state and generators, by name."""
    folder.mkdir()
    trainer.save(folder)
    return {
        f"{file.name}/{name}": array.tobytes()
        for file in sorted(folder.glob("*.safetensors"))
        for name, array in load_file(file).items()
    }


@pytest.mark.parametrize("keys", VARIANTS, ids=lambda keys: "-".join(keys) or "plain")
def test_a_run_with_turns_is_the_same_to_the_bit(
    build: Build, keys: dict[str, Any], tmp_path: Path
) -> None:
    threads = torch.get_num_threads()
    awake, sleeper = build(**keys), build(**keys)
    try:
        for number in range(3):
            one, other = step(awake, number), step(sleeper, number)
            assert one["loss"] == other["loss"] and one["grad_norm"] == other["grad_norm"]
            sleeper.sleep()
            state = saved(sleeper, tmp_path / f"asleep-{number}")
            sleeper.wake()
            assert state == saved(awake, tmp_path / f"awake-{number}")
            assert state == saved(sleeper, tmp_path / f"again-{number}")
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("weights", [False, True])
def test_a_sleeping_trainer_has_freed_its_device_memory(build: Build, weights: bool) -> None:
    """On CPU copies are made too, so that addresses show what was moved."""
    trainer = build(offload_weights=weights)
    step(trainer, 0)
    assert trainer._reference is not None
    parameters = [
        parameter
        for model in (trainer._model, trainer._reference)
        for parameter in model.whole.parameters()
    ]
    (optimizer,) = trainer._optimizers
    # Kept alive, so that nothing else gets their memory.
    held = [parameter.detach() for parameter in parameters]
    remembered = [state["exp_avg"] for state in optimizer.state.values()]
    trainer.sleep()
    for before, state in zip(remembered, optimizer.state.values(), strict=True):
        assert state["exp_avg"].data_ptr() != before.data_ptr()
    for before, parameter in zip(held, parameters, strict=True):
        assert (parameter.data_ptr() != before.data_ptr()) == weights
        assert parameter.grad is None
    trainer.wake()


@pytest.mark.gpu
def test_the_memory_of_the_gpu_is_free_meanwhile(build: Build) -> None:
    trainer = build(device="cuda", offload_weights=True)
    step(trainer, 0)
    before = trainer.logprobs(ragged_batch(), "current")
    weights = sum(p.numel() * p.element_size() for p in trainer._model.whole.parameters())
    held = torch.cuda.memory_allocated()
    trainer.sleep()
    # The weights, those of the reference model, and two moments of each weight.
    assert held - torch.cuda.memory_allocated() >= 4 * weights
    trainer.wake()
    assert torch.cuda.memory_allocated() <= held
    np.testing.assert_array_equal(trainer.logprobs(ragged_batch(), "current"), before)
