"""The trainer on a GPU, beside itself on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from trainer_cases import Surrogate, make_batch, prepared

from astraflow_core.types import Batch
from astraflow_core.types.columns import zeros
from astraflow_plugin_torch_trainer.config import TorchTrainerConfig
from astraflow_plugin_torch_trainer.trainer import TorchTrainer
from astraflow_testing.conformance.subject import context
from astraflow_testing.conformance.trainer import Subject, TrainerConformance, installed
from astraflow_testing.images.pictures import picture, prompt, write_picture_model
from astraflow_wire.column_table import batch_columns
from astraflow_wire.images.model import ImageModel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]
KEYS: dict[str, Any] = {"publish_dtype": "float32", "lr": 1e-2}
STEPS = 3
NEEDS = frozenset({"entropy", "reference"})


class TestTorchTrainerOnCuda(TrainerConformance):
    own_tests: ClassVar = {
        "lora": "test_adapters_are_those_on_cpu",
        "images": "test_images_are_those_on_cpu",
    }

    @pytest.fixture
    def component(self) -> Subject:
        keys = {**KEYS, "device": "cuda"}
        cuts = ({"micro_batch_tokens": 9}, {"layout": "packed"}, {"layout": "tree"})
        return installed("trainer", "torch", keys, *({**keys, **cut} for cut in cuts))

    def test_adapters_are_those_on_cpu(self, folder: Path, tmp_path: Path) -> None:
        same_steps(folder, tmp_path, lora_rank=2)

    def test_images_are_those_on_cpu(self, tmp_path: Path) -> None:
        folder = write_picture_model(tmp_path / "pictured")
        tokens, images = prompt(ImageModel.of(folder), [3], picture(1), [5, 6])
        columns = zeros(batch_columns(False, False), 1, len(tokens))
        given = columns | {"lengths": np.array([len(tokens)], np.int32), "tokens": tokens}
        batch = Batch(id="b", policy="p", version=0, images=images, **given)
        found = []
        for device in ("cpu", "cuda"):
            trainer = made(folder, tmp_path, device=device)
            found.append(trainer.logprobs(batch, "current"))
            trainer.close()
        np.testing.assert_allclose(found[1], found[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "keys", [{}, {"layout": "packed"}, {"layout": "tree"}, {"attention": "flex_attention"}], ids=str
)
def test_steps_are_those_on_cpu(folder: Path, tmp_path: Path, keys: dict[str, Any]) -> None:
    same_steps(folder, tmp_path, **keys)


def test_a_checkpoint_continues(folder: Path, tmp_path: Path) -> None:
    trainer = made(folder, tmp_path, device="cuda")
    stepped(trainer, range(2))
    (tmp_path / "saved").mkdir()
    trainer.save(tmp_path / "saved")
    expected = stepped(trainer, range(2, 3))
    trainer.close()
    for device in ("cuda", "cpu"):
        again = made(folder, tmp_path, device=device)
        again.load(tmp_path / "saved")
        (step,) = stepped(again, range(2, 3))
        for name in ("loss", "grad_norm"):
            assert step[name] == pytest.approx(expected[0][name], rel=1e-3, abs=1e-4)
        again.close()


@pytest.mark.parametrize("keys", [{}, {"layout": "packed"}, {"gradient_checkpointing": True}], ids=str)  # fmt: skip
def test_bfloat16_learns(folder: Path, tmp_path: Path, keys: dict[str, Any]) -> None:
    trainer = made(folder, tmp_path, device="cuda", compute_dtype="bfloat16", **keys)
    losses = [stepped(trainer, [0])[0]["loss"] for _ in range(4)]
    assert losses[-1] < losses[0]
    trainer.close()


def test_memory_is_given_back(folder: Path, tmp_path: Path) -> None:
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    trainer = made(folder, tmp_path, device="cuda")
    assert stepped(trainer, [0])[0]["peak_memory_gb"] > 0
    trainer.close()
    assert torch.cuda.memory_reserved() <= before + 2 * 2**20


def made(folder: Path, place: Path, **keys: Any) -> TorchTrainer:
    trainer = TorchTrainer(TorchTrainerConfig(**{**KEYS, **keys}), context("trainer", place))
    trainer.setup(folder, 10, NEEDS)
    return trainer


def stepped(trainer: TorchTrainer, numbers: Any) -> list[dict[str, float]]:
    """What each step says of the loss."""
    algorithm = Surrogate()
    found = []
    for number in numbers:
        batch = prepared(make_batch(seed=number), algorithm, trainer)
        metrics = trainer.step(batch, algorithm, number)
        found.append({name: metrics[name] for name in ("loss", "grad_norm", "peak_memory_gb")})
    return found


def same_steps(folder: Path, place: Path, **keys: Any) -> None:
    figures, weights = [], []
    on_cpu = {key: value for key, value in keys.items() if key != "attention"}
    for device, own in (("cpu", on_cpu), ("cuda", keys)):
        trainer = made(folder, place, device=device, **own)
        steps = stepped(trainer, range(STEPS))
        figures.append([[step["loss"], step["grad_norm"]] for step in steps])
        weights.append({t.name: np.frombuffer(bytes(t.data), np.float32) for t in trainer.export()})
        trainer.close()
    np.testing.assert_allclose(figures[1], figures[0], rtol=1e-3, atol=1e-4)
    # A gradient near zero that rounds elsewhere turns Adam's first steps around, which are as long as the learning rate.
    for name, expected in weights[0].items():
        np.testing.assert_allclose(weights[1][name], expected, rtol=0, atol=2 * STEPS * KEYS["lr"])
        assert np.median(np.abs(weights[1][name] - expected)) < 1e-4
