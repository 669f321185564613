"""Whole runs with a trainer of two ranks under torchrun: one dies at each phase, and the run goes on."""

from __future__ import annotations

import json
import sys

import pytest
from safetensors.numpy import load_file

from astraflow_core.testing.runs import User

pytest.importorskip("torch", reason="ranks are started by torchrun")

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc"),
]

DYING = '''
"""A table trainer whose ranks kill themselves, each once, as DEATHS says: (rank, phase, how often done before)."""
import os
import signal
from pathlib import Path

from astraflow_core.testing.table import TableTrainer

DEATHS = [(1, "step", 3), (0, "step", 4), (1, "export", 3), (0, "export", 4), (1, "save", 1), (0, "save", 1)]


class Dying(TableTrainer):
    def __init__(self, config, context):
        super().__init__(config, context)
        self.rank = context.ranks.rank
        self.done = {"step": 0, "export": 0, "save": 0}
        self.notes = Path(context.run.directory)

    def at(self, phase):
        pending = [d for d in enumerate(DEATHS) if not (self.notes / f"died-{d[0]}").exists()]
        if pending and pending[0][1] == (self.rank, phase, self.done[phase]):
            (self.notes / f"died-{pending[0][0]}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        self.done[phase] += 1

    def step(self, batch, algorithm, step):
        self.at("step")
        return super().step(batch, algorithm, step)

    def export(self):
        self.at("export")
        yield from super().export()

    def save(self, directory):
        self.at("save")
        (directory / f"rank-{self.rank}").write_text(str(self._logits.sum()))
        if self.rank == 0:
            super().save(directory)


class Failing(TableTrainer):
    def step(self, batch, algorithm, step):
        if step == 2 and self.context.ranks.rank == 1:
            raise KeyError("layer 7")
        return super().step(batch, algorithm, step)

    def __init__(self, config, context):
        super().__init__(config, context)
        self.context = context
'''


def test_a_rank_dies_at_each_phase_and_the_run_goes_on(user: User) -> None:
    user.write("dying.py", DYING)
    ended = user.run_table(
        "run.steps=40",
        "checkpoint.every=3",
        "launcher.restarts=8",
        "policies.solver.trainer.ranks=2",
        "policies.solver.trainer.use=dying:Dying",
        deadline_s=240,
    )
    assert ended.exit_code == 0, ended.text
    directory = ended.run_directory
    assert sorted(path.name for path in directory.glob("died-*")) == [f"died-{i}" for i in range(6)]
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    made = [line for line in lines if "step" in line]
    assert [line["step"] for line in made if not line["again"]] == list(range(1, 41))
    versions = [line["version"] for line in made]
    assert versions == sorted(set(versions))
    assert ended.summary["lost"] == 0
    assert ended.summary["max_staleness_seen"] <= ended.summary["max_staleness_allowed"]
    # The ranks were told the same, before and after each death.
    checkpoint = directory / "checkpoints" / "solver" / "update-00000040"
    assert (checkpoint / "rank-0").read_text() == (checkpoint / "rank-1").read_text()
    first = sum(line["reward"] for line in made[:5]) / 5
    last = sum(line["reward"] for line in made[-5:]) / 5
    assert last > first + 0.3
    assert (load_file(directory / "models" / "solver" / "model.safetensors")["logits"] != 0).any()
    assert user.left_running() == []


def test_an_error_on_one_rank_is_that_of_the_run_and_names_it(user: User) -> None:
    user.write("dying.py", DYING)
    ended = user.run_table(
        "policies.solver.trainer.ranks=2",
        "policies.solver.trainer.use=dying:Failing",
        deadline_s=120,
    )
    assert ended.exit_code == 1
    assert "rank 1 of trainer-solver: KeyError: 'layer 7'" in ended.err
    assert user.left_running() == []
