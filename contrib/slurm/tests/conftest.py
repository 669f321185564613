"""Fixtures: a Slurm cluster of two nodes on loopback."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from local_slurm import LocalSlurm, local_slurm


@pytest.fixture(scope="session")
def slurm() -> Iterator[LocalSlurm]:
    """Two nodes with four cores and two made-up GPUs each; Slurm's commands of this process reach it."""
    with local_slurm() as cluster:
        before = {key: os.environ.get(key) for key in ("SLURM_CONF", "PATH")}
        os.environ["SLURM_CONF"] = str(cluster.config)
        yield cluster
        for key, value in before.items():
            os.environ.pop(key, None) if value is None else os.environ.update({key: value})
