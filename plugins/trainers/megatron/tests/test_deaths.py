"""A whole run with two ranks under torchrun, one of which is killed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from megatron_cases import NO_CUDA

from astraflow_core.testing.runs import User

pytestmark = [pytest.mark.slow, pytest.mark.backend, NO_CUDA]

DYING = '''
"""An engine that any weights will do for, and a trainer one rank of which kills itself in its third update."""
import os
import signal
from pathlib import Path

from astraflow_core.testing.table import TableEngine
from astraflow_plugin_megatron.config import MegatronConfig
from astraflow_plugin_megatron.manifest import astraflow_trainers


class Uniform(TableEngine):
    async def load_weights(self, source):
        self._version = source.version
        self._refuse_other_versions()


def __getattr__(name):
    """The trainer needs torch, which the RaaS does without."""
    if name != "Dying":
        raise AttributeError(name)
    from astraflow_plugin_megatron.trainer import MegatronTrainer

    class Dying(MegatronTrainer):
        Config = MegatronConfig
        capabilities = astraflow_trainers()[0].capabilities

        def __init__(self, config, context):
            super().__init__(config, context)
            self.died = Path(context.run.directory, "died")
            self.last = context.ranks.rank == context.ranks.size - 1

        def step(self, batch, algorithm, step):
            if self.last and step == 2 and not self.died.exists():
                self.died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().step(batch, algorithm, step)

    globals()[name] = Dying
    return Dying
'''
KEYS = (
    "run.steps=5",
    "run.deadline_s=300",
    "checkpoint.every=2",
    "launcher.restarts=2",
    "policies.solver.model=tiny:qwen3?hidden=16&layers=1&heads=2&kv_heads=2",
    "policies.solver.engine.use=dying:Uniform",
    "policies.solver.trainer.use=dying:Dying",
    "policies.solver.trainer.ranks=2",
    "policies.solver.trainer.tensor_parallel=2",
    "policies.solver.trainer.device=cpu",
    "policies.solver.trainer.lr=1e-3",
    "policies.solver.algorithm.use=grpo",
)


@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_a_rank_that_is_killed_does_not_end_the_run(tmp_path: Path) -> None:
    user = User(tmp_path)
    try:
        user.write("dying.py", DYING)
        ended = user.run_table(*KEYS, deadline_s=500)
        left = user.left_running()
    finally:
        user.close()
    assert ended.exit_code == 0, ended.text
    assert (ended.run_directory / "died").exists()
    lines = [
        json.loads(line)
        for line in (ended.run_directory / "metrics.jsonl").read_text().splitlines()
    ]
    made = [line for line in lines if "step" in line]
    assert [line["step"] for line in made if not line["again"]] == [1, 2, 3, 4, 5]
    versions = [line["version"] for line in made]
    assert versions == sorted(set(versions))
    assert ended.summary["lost"] == 0
    assert ended.summary["max_staleness_seen"] <= ended.summary["max_staleness_allowed"]
    assert (ended.run_directory / "models" / "solver" / "model.safetensors").exists()
    assert left == []
