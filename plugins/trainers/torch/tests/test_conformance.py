from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from astraflow_testing.conformance._models.adopt_tests import adopts_adapters
from astraflow_testing.conformance._models.trainer_rig import TrainerRig, exported, train
from astraflow_testing.conformance.trainer import Subject, TrainerConformance, installed

KEYS: dict[str, Any] = {
    "device": "cpu",
    "publish_dtype": "float32",
    "lr": 1e-2,
    "schedule": "cosine",
    "warmup_steps": 2,
}
CUTS: tuple[dict[str, Any], ...] = (
    {"micro_batch_tokens": 9},
    {"micro_batch_tokens": 40, "layout": "packed"},
    {"micro_batch_tokens": 60, "layout": "tree"},
    {"micro_batch_tokens": 30, "gradient_checkpointing": True},
)


class TestTorchTrainer(TrainerConformance):
    own_tests: ClassVar[dict[str, str]] = {"lora": "test_adapters"}

    @pytest.fixture
    def component(self) -> Subject:
        return installed("trainer", "torch", KEYS, *({**KEYS, **cut} for cut in CUTS))

    def test_adapters(self, model: Path, tmp_path: Path) -> None:
        """More of them is in test_lora.py."""
        subject = installed("trainer", "torch", {**KEYS, "lora_rank": 2})
        rig = TrainerRig(subject, model, tmp_path)
        trainer = rig.build()
        before = exported(trainer)
        train(trainer, range(2))
        after = exported(trainer)
        assert before.keys() == after.keys()
        assert all(name.endswith((".lora_A.weight", ".lora_B.weight")) for name in after)
        assert all(bytes(after[n].data) != bytes(before[n].data) for n in after if "lora_B" in n)
        trainer.close()

    @pytest.mark.parametrize("alpha", [16, 5])
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_a_fresh_trainer_adopts_the_adapters_of_a_version(
        self, model: Path, tmp_path: Path, alpha: int, dtype: str
    ) -> None:
        """Times 5 / 3 a number and its quotient are not always each other's."""
        keys = {**KEYS, "lora_rank": 3, "lora_alpha": alpha, "publish_dtype": dtype}
        adopts_adapters(TrainerRig(installed("trainer", "torch", keys), model, tmp_path))
