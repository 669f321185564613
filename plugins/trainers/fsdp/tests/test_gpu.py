"""The same on CUDA with NCCL: one rank on one GPU, against trainer ``torch`` on CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from fsdp_cases import (
    GRPO,
    SCENARIOS,
    STEPS,
    Rank,
    run_scenario,
    same_metrics,
    same_weights,
    train,
)

from astraflow_core.testing.conformance.trainer import Subject, TrainerConformance, installed

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]


class TestFsdpTrainerOnCuda(TrainerConformance):
    own_tests: ClassVar = {
        "multi_rank": "test_the_group_is_of_nccl",
        "reshard": "test_a_checkpoint_continues_on_cpu",
    }

    @pytest.fixture
    def component(self) -> Subject:
        keys = {"device": "cuda", "publish_dtype": "float32", "lr": 1e-2}
        cuts: tuple[dict[str, Any], ...] = ({"micro_batch_tokens": 9}, {"layout": "packed"})
        return installed("trainer", "fsdp", keys, *({**keys, **cut} for cut in cuts))

    def test_the_group_is_of_nccl(self, directory: Path) -> None:
        trainer = Rank(directory).trainer("fsdp", "qwen3", device="cuda")
        assert torch.distributed.get_backend() == "nccl"
        trainer.close()

    def test_a_checkpoint_continues_on_cpu(self, directory: Path, tmp_path: Path) -> None:
        rank = Rank(directory)
        grpo = rank.algorithm("grpo", GRPO)
        trainer = rank.trainer("fsdp", "qwen3", device="cuda")
        train(trainer, grpo, [0])
        trainer.save(tmp_path)
        trainer.finish_save(wait=True)  # type: ignore[attr-defined]
        expected = train(trainer, grpo, [1])
        trainer.close()
        again = rank.trainer("fsdp", "qwen3", device="cpu")
        again.load(tmp_path)
        same_metrics(train(again, grpo, [1]), expected)
        again.close()


@pytest.mark.parametrize("name", SCENARIOS)
def test_five_steps_are_those_on_cpu(name: str, directory: Path) -> None:
    rank = Rank(directory)
    expected = run_scenario(rank, "torch", name)
    got = run_scenario(rank, "fsdp", name, device="cuda")
    same_metrics(got["metrics"], expected["metrics"])
    same_weights(got["weights"], expected["weights"], STEPS)
    np.testing.assert_allclose(got["logprobs"], expected["logprobs"], rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "keys",
    [
        {"layout": "packed"},
        {"gradient_checkpointing": True},
        {"reduce": "each"},
        {"cpu_offload": True},
    ],
    ids=str,
)
def test_bfloat16_learns(keys: dict[str, Any], directory: Path) -> None:
    rank = Rank(directory)
    trainer = rank.trainer("fsdp", "qwen3", device="cuda", compute_dtype="bfloat16", **keys)
    losses = [m["loss"] for m in train(trainer, rank.algorithm("grpo", GRPO), [0, 0, 0, 0])]
    assert losses[-1] < losses[0]
    trainer.close()
