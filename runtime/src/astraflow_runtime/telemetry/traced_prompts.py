"""Which prompts of a run are traced: the same in every process, also after a restart."""

from __future__ import annotations

import xxhash

from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind
from astraflow_core.config.models import RunConfig

FLAG = "spans"
"""The capability of a tracker that takes them."""


def is_traced(task: str, share: float) -> bool:
    """Whether a task of training is among the ``share`` of all; those of a smaller share are among those of a larger one."""
    if share <= 0 or not task.startswith("train-"):
        return False
    return xxhash.xxh3_64_intdigest(task.encode()) < share * 2.0**64


def largest_share(config: RunConfig, catalog: Catalog) -> float:
    """That of the trackers of the run; 0 if none takes spans."""
    shares = (
        t.spans for t in config.trackers.values() if FLAG in catalog.flags(Kind.TRACKER, t.use)
    )
    return max(shares, default=0.0)
