"""Writes the trainer's part of stored groups to the rollout store."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from astraflow_core.config.models import RunConfig
from astraflow_core.types import Batch
from astraflow_runtime.rollouts.building import update_record
from astraflow_runtime.rollouts.sampling import GroupSampling
from astraflow_runtime.rollouts.segments import FOLDER
from astraflow_runtime.rollouts.writer import RolloutWriter, trainer_bytes

Floats = npt.NDArray[np.float32]


class SampledRows:
    """Of a rank that writes nothing: it takes part in what the first rank stores. An
    :class:`~astraflow_runtime.trainer.updates.update.UpdateListener`, which wants the same batches on each rank."""

    def __init__(self, config: RunConfig) -> None:
        self._sampling = GroupSampling.of_run(config)

    def wants(self, batch: Batch) -> bool:
        """Whether a group of the batch is stored."""
        return self._sampling.some and bool(self._rows(batch))

    def trained(self, batch: Batch, step: int, entropies: Floats | None) -> None:
        """Nothing: the first rank writes it."""

    def _rows(self, batch: Batch) -> list[int]:
        groups = np.where(batch.group >= 0, batch.group, -1 - batch.group)
        stored = [number for number in np.unique(groups).tolist() if self._sampling.stores(number)]
        rows: list[int] = np.flatnonzero(np.isin(groups, stored)).tolist()
        return rows


class StoredRows(SampledRows):
    """Those of the trainer of a ``policy``."""

    def __init__(self, config: RunConfig, directory: Path, policy: str) -> None:
        super().__init__(config)
        self._writer = RolloutWriter(directory / FOLDER, f"trainer-{policy}", trainer_bytes(config))

    def trained(self, batch: Batch, step: int, entropies: Floats | None) -> None:
        """An update was made, after ``step`` others."""
        now, rows = time.time(), self._rows(batch)
        self._writer.put(lambda: update_record(batch, rows, step + 1, now, entropies))

    def close(self) -> None:
        """Write the queued records."""
        self._writer.close()
