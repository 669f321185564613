"""The loops of Tinker's cookbook, unmodified and in an interpreter of their own, against ``astraflow tinker serve``."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from agent_clients.environment import interpreter_with
from test_tinker_client import lent_torch, script, served

pytestmark = [
    pytest.mark.backend,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.turns(
        "contrib/commands/tinker/src/**/*.py",
        "tests/agent_clients/environment.py",
        "tests/agent_clients/tinker_cookbook*",
        "tests/test_tinker_client.py",
    ),
]

HERE = Path(__file__).parent / "agent_clients"
__all__ = ["lent_torch", "served"]  # fixtures


def test_its_supervised_rl_and_dpo_loops_learn(
    served: dict[str, str], lent_torch: Path, tmp_path: Path
) -> None:
    python = interpreter_with(HERE / "tinker_cookbook.txt")
    alone = {**served, "PYTHONPATH": str(lent_torch), "HF_HUB_OFFLINE": "1"}
    out = script(python, alone, HERE / "tinker_cookbook_play.py", tmp_path)
    told: dict[str, list[float]] = json.loads(out.splitlines()[-1])
    assert all(len(values) == 6 for values in told.values()), told
    assert told["nll"][-1] < told["nll"][0] / 2
    assert told["dpo_loss"][0] == pytest.approx(math.log(2), abs=1e-4)
    assert told["dpo_loss"][-1] < 0.5
    assert told["reward"][-1] > told["reward"][0] + 0.1
