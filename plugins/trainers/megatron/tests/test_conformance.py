from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from megatron_cases import NO_CUDA
from megatron_launch import MEGATRON, same_steps_as_one

from astraflow_core.errors import RunFailed
from astraflow_testing.conformance._models.adopt_tests import adopts_adapters
from astraflow_testing.conformance._models.trainer_rig import TrainerRig, ragged_batch
from astraflow_testing.conformance.trainer import Subject, TrainerConformance, installed

pytestmark = [pytest.mark.backend, NO_CUDA]

KEYS: dict[str, Any] = {
    "device": "cpu",
    "publish_dtype": "float32",
    "lr": 1e-2,
    "schedule": "cosine",
    "warmup_steps": 2,
}
CUTS: tuple[dict[str, Any], ...] = (
    {"micro_batch_tokens": 9},
    {"micro_batch_tokens": 30, "gradient_checkpointing": True},
)


class TestMegatronTrainer(TrainerConformance):
    own_tests: ClassVar = {
        "multi_rank": "test_two_ranks_make_the_steps_of_one",
        "reshard": "test_two_ranks_make_the_steps_of_one",
        "lora": "test_two_ranks_make_the_steps_of_one",
    }

    @pytest.fixture
    def component(self) -> Subject:
        return installed("trainer", "megatron", KEYS, *({**KEYS, **cut} for cut in CUTS))

    def test_a_row_beyond_the_context_is_refused(self, rig: TrainerRig) -> None:
        batch = ragged_batch(rows=30)
        joined = replace(batch, lengths=np.array([len(batch.tokens)], np.int32))
        with pytest.raises(RunFailed, match=f"has {len(batch.tokens)} tokens, .* is 128, its max_"):
            rig.build().logprobs(joined, "current")

    def test_a_fresh_trainer_adopts_the_adapters_of_a_version(
        self, model: Path, tmp_path: Path
    ) -> None:
        keys = {**KEYS, "lora_rank": 3, "lora_alpha": 5}
        rig = TrainerRig(installed("trainer", "megatron", keys), model, tmp_path)
        adopts_adapters(rig)
        for trainer in rig.built:
            trainer.close()

    @MEGATRON
    @pytest.mark.slow
    @pytest.mark.timeout(600)
    def test_two_ranks_make_the_steps_of_one(self, torch_alone: Path, tmp_path: Path) -> None:
        same_steps_as_one(2, torch_alone, tmp_path / "ranks")
