"""The trainer `torch`, which records its batches."""

from __future__ import annotations

import hashlib
from dataclasses import fields

import numpy as np

from astraflow_core.protocols.algorithm import Algorithm
from astraflow_core.types import Batch, ComponentContext
from astraflow_plugin_torch_trainer.config import TorchTrainerConfig
from astraflow_plugin_torch_trainer.trainer import TorchTrainer

COMPUTED = ("advantages", "proximal", "reference", "values")
"""What the trainer adds to a batch."""


class NotingTrainer(TorchTrainer):
    """Appends a line for each step to ``noted.txt`` of its run."""

    Config = TorchTrainerConfig
    capabilities = frozenset({"entropy", "reference", "proximal", "checkpoint"})

    def __init__(self, config: TorchTrainerConfig, context: ComponentContext) -> None:
        super().__init__(config, context)
        self._noted = context.run.directory / "noted.txt"

    def step(self, batch: Batch, algorithm: Algorithm, step: int) -> dict[str, float]:
        """One optimizer step."""
        digest = hashlib.sha256()
        for field in fields(batch):
            value = getattr(batch, field.name)
            if field.name not in COMPUTED:
                raw = (
                    np.ascontiguousarray(value).tobytes()
                    if isinstance(value, np.ndarray)
                    else repr(value).encode()
                )
                digest.update(field.name.encode() + raw)
        with self._noted.open("a", encoding="utf-8") as file:
            file.write(f"{step} {batch.id} {digest.hexdigest()}\n")
        return super().step(batch, algorithm, step)
