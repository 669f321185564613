"""The same on CUDA with NCCL: one rank on one GPU, against trainer ``torch`` on CPU."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from megatron_cases import LR, STEPS, Course, as_of_two_replicas, write_model
from megatron_launch import start_adapters

from astraflow_testing.conformance.trainer import Subject, TrainerConformance, installed

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]


class TestMegatronTrainerOnCuda(TrainerConformance):
    own_tests: ClassVar = {
        "multi_rank": "test_the_group_is_of_nccl",
        "reshard": "test_what_two_replicas_saved_is_read",
        "lora": "test_adapters_are_those_on_cpu",
    }

    @pytest.fixture
    def component(self) -> Subject:
        keys = {"device": "cuda", "publish_dtype": "float32", "lr": 1e-2}
        return installed("trainer", "megatron", keys, {**keys, "micro_batch_tokens": 9})

    def test_the_group_is_of_nccl(self, tmp_path: Path) -> None:
        model = write_model(tmp_path / "model", "qwen3")
        course = Course("megatron", {"device": "cuda"}, model, tmp_path)
        assert torch.distributed.get_backend() == "nccl"
        course.trainer.close()

    def test_adapters_are_those_on_cpu(self, tmp_path: Path) -> None:
        model = write_model(tmp_path / "model", "qwen3")
        expected = Course("torch", {"lora_rank": 3}, model, tmp_path)
        start_adapters(expected)
        got = Course("megatron", {"device": "cuda", "lora_rank": 3}, model, tmp_path)
        for number in range(STEPS):
            batch = expected.sampled(number)
            one, two = expected.step(batch, number), got.step(batch, number)
            assert two["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-3)
        adapters = got.weights()
        for name, value in expected.weights().items():
            assert np.abs(adapters[name] - value).max() <= 0.05 * LR * STEPS, name
        got.trainer.close()

    def test_what_two_replicas_saved_is_read(self, tmp_path: Path) -> None:
        model = write_model(tmp_path / "model", "qwen3")
        course = Course("megatron", {"device": "cuda"}, model, tmp_path)
        course.step(course.sampled(0), 0)
        (tmp_path / "saved").mkdir()
        course.trainer.save(tmp_path / "saved")
        course.trainer.finish_save(wait=True)
        expected = course.weights()
        as_of_two_replicas(tmp_path / "saved")
        course.step(course.sampled(1), 1)
        course.trainer.load(tmp_path / "saved")
        for name, value in course.weights().items():
            assert np.array_equal(value, expected[name])
        course.trainer.close()


@pytest.mark.parametrize("kind", ["qwen3", "llama", "qwen3_moe"])
def test_five_steps_are_those_on_cpu(kind: str, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", kind)
    expected = Course("torch", {}, model, tmp_path)
    got = Course("megatron", {"device": "cuda"}, model, tmp_path)
    for number in range(STEPS):
        batch = expected.sampled(number)
        one, two = expected.step(batch, number), got.step(batch, number)
        assert two["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-3)
    weights = got.weights()
    for name, value in expected.weights().items():
        assert np.abs(weights[name] - value).max() <= 0.05 * LR * STEPS, name
    expected.trainer.close()
    got.trainer.close()


def test_bfloat16_learns(tmp_path: Path) -> None:
    keys = {"device": "cuda", "compute_dtype": "bfloat16", "publish_dtype": "bfloat16"}
    course = Course("megatron", keys, write_model(tmp_path / "model", "qwen3"), tmp_path)
    batch = course.prepared(course.sampled(0))
    losses = [course.trainer.step(batch, course.algorithm, n)["loss"] for n in range(STEPS)]
    assert losses[-1] < losses[0]
    course.trainer.close()
