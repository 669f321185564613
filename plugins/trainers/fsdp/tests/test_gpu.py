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
    make_batch,
    prepared,
    run_scenario,
    same_metrics,
    same_weights,
    train,
)

from astraflow_plugin_fsdp.context_attention import attend_piece
from astraflow_plugin_fsdp.context_layout import TokenSpan
from astraflow_testing.conformance.trainer import Subject, TrainerConformance, installed

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]


class TestFsdpTrainerOnCuda(TrainerConformance):
    own_tests: ClassVar = {
        "multi_rank": "test_the_group_is_of_nccl",
        "reshard": "test_a_checkpoint_continues_on_cpu",
        "lora": "test_adapters_are_those_on_cpu",
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

    def test_adapters_are_those_on_cpu(self, directory: Path) -> None:
        same_steps(directory, "lora")


@pytest.mark.parametrize("name", sorted(SCENARIOS.keys() - {"lora"}))
def test_five_steps_are_those_on_cpu(name: str, directory: Path) -> None:
    same_steps(directory, name)


def same_steps(directory: Path, name: str) -> None:
    rank = Rank(directory)
    expected = run_scenario(rank, "torch", name)
    got = run_scenario(rank, "fsdp", name, device="cuda")
    same_metrics(got["metrics"], expected["metrics"])
    same_weights(got["weights"], expected["weights"], STEPS)
    np.testing.assert_allclose(got["logprobs"], expected["logprobs"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-4), (torch.bfloat16, 0.05)])
def test_a_rank_of_those_that_share_a_row_attends_as_on_cpu(
    window: int | None, dtype: torch.dtype, near: float
) -> None:
    def attended(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
        rng = torch.Generator().manual_seed(1)
        shapes = [(2, 4, 64, 64), (2, 2, 96, 64), (2, 2, 96, 64)]
        given = [torch.randn(s, generator=rng).to(device, dtype).requires_grad_() for s in shapes]
        piece = TokenSpan(slice(32, 64), slice(0, 80))
        seen = attend_piece(*given, piece, None, window)  # type: ignore[arg-type]
        (seen.float() ** 2).sum().backward()
        return [part.detach().float().cpu() for part in (seen, *(t.grad for t in given))]

    for got, expected in zip(attended("cuda", dtype), attended("cpu", torch.float32), strict=True):
        torch.testing.assert_close(got, expected, rtol=near, atol=near)


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
    grpo = rank.algorithm("grpo", GRPO)
    batch = prepared(trainer, grpo, make_batch(0))
    losses = [trainer.step(batch, grpo, number)["loss"] for number in range(4)]
    assert losses[-1] < losses[0]
    trainer.close()
