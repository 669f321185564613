"""How many CPU threads each process of a run gets."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

from astraflow_core.protocols.launcher import ProcessSpec

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")


def usable_cores(quota_file: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Cores that this process may use: its affinity, held to the container's CPU quota, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    if quota_file.exists():
        quota, _, period = quota_file.read_text().partition(" ")
        if quota != "max":
            cores = min(cores, math.ceil(int(quota) / int(period)))
    return max(1, cores)


def threads_each(specs: Sequence[ProcessSpec], policies: int, cores: int) -> int:
    """An equal share of ``cores`` for each process that computes: every rank of a trainer, and in every
    RaaS the engine of each policy."""
    heavy = sum(spec.ranks for spec in specs if spec.role == "trainer")
    heavy += policies * sum(spec.role == "raas" for spec in specs)
    return max(1, cores // max(1, heavy))
