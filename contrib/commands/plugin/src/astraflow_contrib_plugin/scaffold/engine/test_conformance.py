"""``sample_thing`` keeps what every engine promises, on tables that are not uniform."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from astraflow_plugin_sample_thing.component import POSITIONS
from safetensors.numpy import load_file, save_file

from astraflow_testing.conformance.engine import EngineConformance, Reference, Subject, installed
from astraflow_testing.conformance.manifest import ManifestConformance
from astraflow_tiny_model.folder import ALPHABET, write_tiny_model


def write_table(file: Path, seed: int) -> Path:
    logits = np.random.default_rng(seed).normal(0, 1.5, (POSITIONS, len(ALPHABET)))
    save_file({"logits": logits.astype(np.float32)}, file)
    return file


class TestManifest(ManifestConformance):
    @pytest.fixture
    def manifest(self) -> str:
        return "astraflow_plugin_sample_thing.manifest"


class TestSampleThing(EngineConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("engine", "sample_thing", {"token_s": 0.001})

    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        folder = write_tiny_model(tmp_path / "model", hidden=8, layers=1, heads=1, kv_heads=1)
        write_table(folder / "model.safetensors", 0)
        return folder

    @pytest.fixture
    def other(self, tmp_path: Path) -> Path:
        return write_table(tmp_path / "other.safetensors", 1)

    @pytest.fixture
    def reference(self) -> Reference:
        """The row of each sampled token, of the weights that sampled it."""

        def logits(prompt: Any, tokens: Any, files: Sequence[Path]) -> Any:
            rows = [min(place, POSITIONS - 1) for place in range(len(files))]
            tables = [load_file(file)["logits"].astype(np.float64) for file in files]
            return np.array([table[row] for table, row in zip(tables, rows, strict=True)])

        return logits
