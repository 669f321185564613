"""The components that need no framework keep the promises of their seams too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from astraflow_core.testing.conformance.engine import (
    EngineConformance,
    EngineSubject,
    Reference,
)
from astraflow_core.testing.table import (
    POSITIONS,
    TableEngine,
    TableEngineConfig,
)
from astraflow_core.testing.tiny_model import write_tiny_model


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
    def subject(self) -> EngineSubject:
        config = TableEngineConfig(token_s=0.001)
        return EngineSubject(TableEngine, config, TableEngine.capabilities)

    @pytest.fixture
    def model(self, table: Path) -> Path:
        return table

    @pytest.fixture
    def other(self, tmp_path: Path) -> Path:
        return write_table(tmp_path / "other.safetensors", 1)

    @pytest.fixture
    def reference(self) -> Reference:
        def logits(prompt: np.ndarray, tokens: np.ndarray, files: Sequence[Path]) -> np.ndarray:
            tables = {file: load_file(file)["logits"].astype(np.float64) for file in set(files)}
            rows = [tables[file][min(i, POSITIONS - 1)] for i, file in enumerate(files)]
            return np.array(rows)

        return logits
