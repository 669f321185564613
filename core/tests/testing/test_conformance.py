"""The components that need no framework keep the promises of their seams too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from astraflow_core.testing.conformance._trainer_rig import Rig, exported, train
from astraflow_core.testing.conformance.engine import EngineConformance, Subject, installed
from astraflow_core.testing.conformance.engine import Reference as EngineReference
from astraflow_core.testing.conformance.trainer import Reference as TrainerReference
from astraflow_core.testing.conformance.trainer import TrainerConformance
from astraflow_core.testing.table import POSITIONS
from astraflow_core.testing.tiny_model import write_tiny_model
from astraflow_core.types import Batch

TABLE = "astraflow_core.testing.table"


def write_table(file: Path, seed: int) -> Path:
    logits = np.random.default_rng(seed).normal(0, 1.5, (POSITIONS, 27))
    save_file({"logits": logits.astype(np.float32)}, file)
    return file


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """The folder of a table that is not uniform."""
    folder = write_tiny_model(tmp_path / "table", hidden=8, layers=1, heads=1, kv_heads=1)
    write_table(folder / "model.safetensors", 0)
    return folder


class TestTableEngine(EngineConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("engine", f"{TABLE}:TableEngine", {"token_s": 0.001})

    @pytest.fixture
    def model(self, table: Path) -> Path:
        return table

    @pytest.fixture
    def other(self, tmp_path: Path) -> Path:
        return write_table(tmp_path / "other.safetensors", 1)

    @pytest.fixture
    def reference(self) -> EngineReference:
        def logits(prompt: np.ndarray, tokens: np.ndarray, files: Sequence[Path]) -> np.ndarray:
            tables = {file: load_file(file)["logits"].astype(np.float64) for file in set(files)}
            rows = [tables[file][min(i, POSITIONS - 1)] for i, file in enumerate(files)]
            return np.array(rows)

        return logits


class TestTableTrainer(TrainerConformance):
    calls_loss = False
    own_tests: ClassVar[dict[str, str]] = {"multi_rank": "test_ranks_end_up_alike"}

    @pytest.fixture
    def component(self) -> Subject:
        return installed("trainer", f"{TABLE}:TableTrainer", {"lr": 1.0})

    def test_ranks_end_up_alike(self, rig: Rig) -> None:
        trainers = [rig.build(), rig.build()]
        metrics = [train(trainer, range(3)) for trainer in trainers]
        assert metrics[0] == metrics[1]
        assert exported(trainers[0]) == exported(trainers[1])

    @pytest.fixture
    def model(self, table: Path) -> Path:
        return table

    @pytest.fixture
    def reference(self) -> TrainerReference:
        def logits(file: Path, batch: Batch) -> np.ndarray:
            rows = load_file(file)["logits"].astype(np.float64)
            places = []
            for start, end in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
                trained = batch.loss_mask[start:end]
                places += [min(int(trained[:t].sum()), POSITIONS - 1) for t in range(len(trained))]
            return rows[places]

        return logits
