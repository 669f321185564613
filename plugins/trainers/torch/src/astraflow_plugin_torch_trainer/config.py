"""The keys of the trainer ``torch``."""

from __future__ import annotations

from astraflow_torch_training.config import TrainingConfig


class TorchTrainerConfig(TrainingConfig):
    """``trainer = { use = "torch", … }``"""
