from __future__ import annotations

from typing import Any, ClassVar

import pytest
from cases import STEPS, same_metrics, same_weights

from astraflow_core.testing.conformance.trainer import Subject, TrainerConformance, installed

KEYS: dict[str, Any] = {
    "device": "cpu",
    "publish_dtype": "float32",
    "lr": 1e-2,
    "schedule": "cosine",
    "warmup_steps": 2,
}
CUTS: tuple[dict[str, Any], ...] = (
    {"micro_batch_tokens": 9},
    {"micro_batch_tokens": 9, "reduce": "each"},
    {"micro_batch_tokens": 40, "layout": "packed"},
    {"micro_batch_tokens": 30, "gradient_checkpointing": True},
)


class TestFsdpTrainer(TrainerConformance):
    own_tests: ClassVar = {"multi_rank": "test_two_ranks_make_the_step_of_one"}

    @pytest.fixture
    def component(self) -> Subject:
        return installed("trainer", "fsdp", KEYS, *({**KEYS, **cut} for cut in CUTS))

    @pytest.mark.slow
    @pytest.mark.timeout(300)
    def test_two_ranks_make_the_step_of_one(
        self, one: dict[str, Any], two: list[dict[str, Any]]
    ) -> None:
        for found in two:
            same_metrics(found["qwen3"]["metrics"], one["qwen3"]["metrics"])
            same_weights(found["qwen3"]["weights"], one["qwen3"]["weights"], STEPS)
