"""What a trainer puts into the rollout store: its part of the groups that are stored."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from astraflow_core.config.models import RunConfig
from astraflow_core.types import Batch
from astraflow_runtime.rollouts.building import update_record
from astraflow_runtime.rollouts.sampling import GroupSampling
from astraflow_runtime.rollouts.segments import FOLDER
from astraflow_runtime.rollouts.writer import RolloutWriter, trainer_bytes


class StoredRows:
    """Those of the trainer of a ``policy``; an :class:`~astraflow_runtime.trainer.updates.update.UpdateListener`."""

    def __init__(self, config: RunConfig, directory: Path, policy: str) -> None:
        self._sampling = GroupSampling.of_run(config)
        self._writer = RolloutWriter(directory / FOLDER, f"trainer-{policy}", trainer_bytes(config))

    def wants(self, batch: Batch) -> bool:
        """Whether a group of it is stored."""
        return self._sampling.some and bool(self._rows(batch))

    def trained(self, batch: Batch, step: int) -> None:
        """An update was made, after ``step`` others."""
        now, rows = time.time(), self._rows(batch)
        self._writer.put(lambda: update_record(batch, rows, step + 1, now))

    def _rows(self, batch: Batch) -> list[int]:
        groups = np.where(batch.group >= 0, batch.group, -1 - batch.group)
        stored = [number for number in np.unique(groups).tolist() if self._sampling.stores(number)]
        rows: list[int] = np.flatnonzero(np.isin(groups, stored)).tolist()
        return rows

    def close(self) -> None:
        """Write what waits."""
        self._writer.close()
