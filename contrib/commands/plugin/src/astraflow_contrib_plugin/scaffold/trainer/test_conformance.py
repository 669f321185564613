"""``sample_thing`` keeps what every trainer promises, on a table that is not uniform."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from astraflow_plugin_sample_thing.component import POSITIONS
from safetensors.numpy import load_file, save_file

from astraflow_core.types import Batch
from astraflow_testing.conformance.manifest import ManifestConformance
from astraflow_testing.conformance.trainer import Reference, Subject, TrainerConformance, installed
from astraflow_tiny_model.folder import ALPHABET, write_tiny_model


class TestManifest(ManifestConformance):
    @pytest.fixture
    def manifest(self) -> str:
        return "astraflow_plugin_sample_thing.manifest"


class TestSampleThing(TrainerConformance):
    calls_loss = False

    @pytest.fixture
    def component(self) -> Subject:
        return installed("trainer", "sample_thing", {"lr": 1.0})

    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        folder = write_tiny_model(tmp_path / "model", hidden=8, layers=1, heads=1, kv_heads=1)
        logits = np.random.default_rng(0).normal(0, 1.5, (POSITIONS, len(ALPHABET)))
        save_file({"logits": logits.astype(np.float32)}, folder / "model.safetensors")
        return folder

    @pytest.fixture
    def reference(self, model: Path) -> Reference:
        """The row of each token: the trained tokens before it in its sequence."""

        def logits(file: Path, batch: Batch) -> Any:
            table = load_file(file)["logits"].astype(np.float64)
            rows = []
            for start, end in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
                seen = 0
                for trained in batch.loss_mask[start:end]:
                    rows.append(table[min(seen, POSITIONS - 1)])
                    seen += int(trained)
            return np.array(rows)

        return logits
