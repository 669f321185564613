"""Advantages and weights work where torch is not installed."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
sys.modules["torch"] = None  # any import of it now fails
import numpy as np
from pathlib import Path
from astraflow_plugin_losses.algorithms.grpo import Grpo
from astraflow_plugin_losses.algorithms.grpo import GrpoConfig
from astraflow_core.types import Batch, ComponentContext, RunInfo

run = RunInfo("test", 0, 1, 0, ("p",), Path("."))
context = ComponentContext(run=run, role="trainer", policy="p", seed=0, directory=Path("."))
algorithm = Grpo(GrpoConfig(), context)
mask = np.array([0, 1, 0, 1], dtype=bool)
batch = Batch(
    id="b", policy="p", version=0,
    lengths=np.array([2, 2], dtype=np.int32), tokens=np.zeros(4, dtype=np.int32), loss_mask=mask,
    logprobs=np.zeros(4, dtype=np.float32), versions=np.zeros(4, dtype=np.int32),
    rewards=np.array([1, 0], dtype=np.float32), group=np.zeros(2, dtype=np.int64),
    trajectory=np.arange(2), group_size=np.full(2, 2, dtype=np.int32),
    group_mean=np.full(2, 0.5, dtype=np.float32), group_std=np.full(2, 0.5**0.5, dtype=np.float32),
)
np.testing.assert_allclose(algorithm.advantages(batch), [0, 0.5**0.5, 0, -(0.5**0.5)], rtol=1e-3)
np.testing.assert_array_equal(algorithm.weights(batch)["policy"], [0, 0.5, 0, 0.5])
"""


def test_advantages_and_weights_without_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr
