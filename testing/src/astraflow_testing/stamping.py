"""Batches made by hand, with what a dataflow stamps on rows of whole groups."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from astraflow_core.types import Batch, NamedRewards
from astraflow_runtime.dataflow.rows.stamping import stamped

__all__ = ["NAMED", "stamped", "with_named_rewards"]

NAMED = ("correct", "form")
"""The names of the rewards that batches of the testing kit have."""


def with_named_rewards(batch: Batch, seed: int = 0) -> Batch:
    """The batch with made-up rewards under the names :data:`NAMED`: 0 or 1, and a number from 0 to 1. Their statistics are
    those of :func:`stamped`, which is called afterwards."""
    rng = np.random.default_rng(seed)
    size = len(batch)
    earned = np.stack([rng.integers(0, 2, size), rng.random(size)]).astype(np.float32)
    none = np.zeros_like(earned)
    return replace(batch, named_rewards=NamedRewards(NAMED, earned, none, none))
