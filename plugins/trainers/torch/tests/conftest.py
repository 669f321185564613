"""A tiny model and the way to build a trainer on it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from astraflow_core.types import ComponentContext, RunInfo
from astraflow_plugin_torch_trainer.config import TorchTrainerConfig
from astraflow_plugin_torch_trainer.trainer import TorchTrainer
from astraflow_tiny_model.folder import write_tiny_model

sys.path.insert(0, str(Path(__file__).parent))  # for trainer_cases


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(
        tmp_path_factory.mktemp("model"), hidden=32, layers=2, heads=4, kv_heads=2, init_std=0.2
    )


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., TorchTrainer]:
    run = RunInfo("test", 0, 10, 0, ("p",), tmp_path)
    context = ComponentContext(
        run=run, role="trainer", policy="p", seed=7, directory=tmp_path / "state"
    )

    def make(
        folder: Path,
        needs: frozenset[str] = frozenset({"entropy", "reference"}),
        total_steps: int = 10,
        **keys: Any,
    ) -> TorchTrainer:
        trainer = TorchTrainer(TorchTrainerConfig(device="cpu", **keys), context)
        trainer.setup(folder, total_steps, needs)
        return trainer

    return make
