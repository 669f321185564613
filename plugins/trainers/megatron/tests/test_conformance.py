from __future__ import annotations

from typing import Any

import pytest

from astraflow_core.testing.conformance.trainer import Subject, TrainerConformance, installed

pytestmark = pytest.mark.backend

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
    @pytest.fixture
    def component(self) -> Subject:
        return installed("trainer", "megatron", KEYS, *({**KEYS, **cut} for cut in CUTS))
