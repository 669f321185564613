"""The components that need no framework keep the promises of their seams too."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from astraflow_core.types import Batch
from astraflow_testing.conformance._models.engine_rig import Served, serve
from astraflow_testing.conformance._models.trainer_rig import TrainerRig, exported, train
from astraflow_testing.conformance.engine import EngineConformance, Subject, installed
from astraflow_testing.conformance.engine import Reference as EngineReference
from astraflow_testing.conformance.trainer import Reference as TrainerReference
from astraflow_testing.conformance.trainer import TrainerConformance
from astraflow_testing.table import POSITIONS, TableEngine, TableEngineConfig
from astraflow_tiny_model.folder import write_tiny_model

TABLE = "astraflow_testing.table"


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


class Failing(TableEngine):
    """Ends requests with an error when it is closed, as an engine may."""

    async def close(self) -> None:
        for running in self._running.values():
            running.future.set_exception(RuntimeError("the engine was closed"))
        await super().close()


def test_what_a_test_started_and_did_not_wait_for_ends_with_it(
    table: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = TableEngineConfig(token_s=0.001)
    failing = Subject({"failing": lambda context: Failing(config, context)}, frozenset())
    ended = []

    async def scenario(served: Served) -> None:
        ended.extend(await served.underway(1))

    serve(failing, table, tmp_path, 20, scenario)
    assert ended.pop().task.done()
    gc.collect()
    assert not caplog.records


class TestTableTrainer(TrainerConformance):
    calls_loss = False
    own_tests: ClassVar[dict[str, str]] = {"multi_rank": "test_ranks_end_up_alike"}

    @pytest.fixture
    def component(self) -> Subject:
        return installed("trainer", f"{TABLE}:TableTrainer", {"lr": 1.0})

    def test_ranks_end_up_alike(self, rig: TrainerRig) -> None:
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
