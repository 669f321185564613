"""Whole runs with a trainer of two ranks under torchrun: one dies at each phase, and the run continues."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from astraflow_testing.runs import User

pytest.importorskip("torch", reason="ranks are started by torchrun")

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.slow,
    pytest.mark.usefixtures("heavy_imports"),  # those of torchrun
    pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc"),
]

DYING = '''
"""A table trainer whose ranks kill themselves, each once, as DEATHS says: (rank, phase, how often done before)."""
import os
import signal
from pathlib import Path

from astraflow_core.errors import UserError
from astraflow_testing.table import TableTrainer
from astraflow_runtime.trainer.ranks.channel import RankChannel
from astraflow_runtime.trainer.upstream import DataflowClient

DEATHS = [
    (1, "step", 3), (0, "step", 4), (1, "export", 3), (0, "export", 4), (1, "save", 1), (0, "save", 1),
    (1, "wait", 9), (0, "wait", 2),
]


class Dying(TableTrainer):
    def __init__(self, config, context):
        super().__init__(config, context)
        self.rank = context.ranks.rank
        self.done = {"step": 0, "export": 0, "save": 0, "wait": 0}
        self.notes = Path(context.run.directory)
        for owner, name in ((RankChannel, "order"), (DataflowClient, "next_batch")):  # what the ranks wait in
            setattr(owner, name, self.may_die_in(getattr(owner, name)))

    def may_die_in(self, waits):
        def instead(*arguments):
            self.at("wait")
            return waits(*arguments)

        return instead

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
        if step == 2 and self.context.run.name == f"fails-on-{self.context.ranks.rank}":
            raise KeyError("layer 7")
        return super().step(batch, algorithm, step)

    def __init__(self, config, context):
        super().__init__(config, context)
        self.context = context


class Mistaken(TableTrainer):
    """A mistake of the user: all ranks find it when they are built, or when they set up."""

    def __init__(self, config, context):
        super().__init__(config, context)
        self.context = context
        if "built" in context.run.name:
            raise UserError("there is no such mesh")

    def setup(self, model, total_steps, needs):
        rank = self.context.ranks.rank
        raise UserError("replicas = 3 does not divide 2 ranks" if rank == 0 else "rank 0: no")
'''


SHARDED = '''
"""fsdp on the tiniest model. Rank 1 of two is killed in one phase of PHASES after the other; later two ranks end."""
import os
import signal
from pathlib import Path

from astraflow_core.errors import UserError
from astraflow_testing.table import TableEngine
from astraflow_plugin_fsdp.config import FsdpConfig
from astraflow_plugin_fsdp.trainer import FsdpTrainer

PHASES = ("backward", "save")


class Blind(TableEngine):
    """Samples uniformly, whatever it is given."""

    async def load_weights(self, source):
        assert source.path.stat().st_size
        self._version = source.version
        self._refuse_other_versions()


class Sharded(FsdpTrainer):
    Config = FsdpConfig
    capabilities = frozenset({"entropy", "checkpoint", "async_save", "reshard", "multi_rank"})

    def __init__(self, config, context):
        super().__init__(config, context)
        self.ranks, self.notes, self.made = context.ranks, Path(context.run.directory), 0

    def setup(self, model, total_steps, needs):
        from torch.distributed.checkpoint.filesystem import FileSystemWriter

        from astraflow_plugin_fsdp.gradient import Boundary

        places = (Boundary, "backward"), (FileSystemWriter, "write_data")
        for phase, (owner, name) in zip(PHASES, places, strict=True):
            setattr(owner, name, self.may_die_in(phase, getattr(owner, name)))
        super().setup(model, total_steps, needs)

    def may_die_in(self, phase, does):
        def instead(*arguments, **keywords):
            self.at(phase)
            return does(*arguments, **keywords)

        return instead

    def at(self, phase):
        left = [p for p in PHASES if not (self.notes / f"died-in-{p}").exists()]
        if self.ranks.rank == 1 and self.made >= 2 and left[:1] == [phase]:
            (self.notes / f"died-in-{phase}").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def step(self, batch, algorithm, step):
        if self.ranks.size == 2 and step == 10:
            raise UserError("two ranks are one too many")
        metrics = super().step(batch, algorithm, step)
        self.made += 1
        return metrics
'''

RANKS = pytest.mark.turns(
    "runtime/src/astraflow_runtime/trainer/**/*.py",
    "runtime/src/astraflow_runtime/launch/**/*.py",
    "testing/src/astraflow_testing/table.py",
)
"""What an error of ranks is about; one of each kind is made by each commit."""


def test_a_rank_dies_at_each_phase_and_the_run_continues(user: User) -> None:
    user.write("dying.py", DYING)
    ended = user.run_table(
        "run.steps=40",
        "checkpoint.every=3",
        "launcher.restarts=10",
        "policies.solver.trainer.ranks=2",
        "policies.solver.trainer.use=dying:Dying",
        deadline_s=240,
    )
    assert ended.exit_code == 0, ended.text
    directory = ended.run_directory
    assert sorted(path.name for path in directory.glob("died-*")) == [f"died-{i}" for i in range(8)]
    # torchrun names one rank of those that died before it restarted them; each that it names is reported.
    named = (directory / "logs" / "trainer-solver.log").read_text().count("failed (exitcode: -9)")
    assert named > 0
    assert (
        ended.text.count(" was killed by SIGKILL (out of memory?); all ranks start again") == named
    )
    made = [line for line in metrics(directory) if "step" in line]
    assert steps_made(directory) == list(range(1, 41))
    versions = [line["version"] for line in made]
    assert versions == sorted(set(versions))
    assert ended.summary["lost"] == 0
    assert ended.summary["max_staleness_seen"] <= ended.summary["max_staleness_allowed"]
    # All ranks got the same orders, before and after each death.
    checkpoint = directory / "checkpoints" / "solver" / "update-00000040"
    assert (checkpoint / "rank-0").read_text() == (checkpoint / "rank-1").read_text()
    first = sum(line["reward"] for line in made[:5]) / 5
    last = sum(line["reward"] for line in made[-5:]) / 5
    assert last > first + 0.3
    assert (load_file(directory / "models" / "solver" / "model.safetensors")["logits"] != 0).any()
    assert user.left_running() == []


def test_a_rank_that_is_killed_and_can_continue_with_nothing_ends_the_run(user: User) -> None:
    user.write("dying.py", DYING)
    ended = user.run_table(
        "run.steps=40",
        "checkpoint.recover=false",
        "policies.solver.trainer.ranks=2",
        "policies.solver.trainer.use=dying:Dying",
        deadline_s=120,
    )
    assert ended.exit_code == 1
    (line,) = (line for line in ended.err.splitlines() if line.startswith("astraflow: "))
    assert "trainer-solver ended because rank 1 was killed by SIGKILL" in line
    assert "Set [checkpoint] every" in line
    assert user.left_running() == []


@pytest.mark.parametrize("rank", [pytest.param(0, marks=RANKS), 1])
def test_an_error_on_one_rank_is_that_of_the_run_and_names_it(rank: int, user: User) -> None:
    user.write("dying.py", DYING)
    ended = user.run_table(
        f"run.name=fails-on-{rank}",
        "checkpoint.every=1",
        "policies.solver.trainer.ranks=2",
        "policies.solver.trainer.use=dying:Failing",
        deadline_s=120,
    )
    assert ended.exit_code == 1
    said = "trainer 'dying:Failing' raised KeyError: 'layer 7'"
    assert f"rank {rank} of trainer-solver: {said} ({user.directory}/dying.py:" in ended.err
    assert user.left_running() == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        pytest.param("built", "there is no such mesh", marks=RANKS),
        ("set-up", "replicas = 3 does not divide 2 ranks"),
    ],
)
def test_a_mistake_of_the_user_ends_all_ranks_with_one_message(
    name: str, said: str, user: User
) -> None:
    user.write("dying.py", DYING)
    ended = user.run_table(
        f"run.name={name}",
        "policies.solver.trainer.ranks=2",
        "policies.solver.trainer.use=dying:Mistaken",
        deadline_s=120,
    )
    assert ended.exit_code == 2, ended.text
    (line,) = (line for line in ended.err.splitlines() if line.startswith("astraflow: "))
    assert line == f"astraflow: the trainer of 'solver' failed: {said}"
    assert "Traceback" not in ended.text and "rank 1" not in ended.err
    assert user.left_running() == []


@pytest.mark.turns(
    "plugins/trainers/fsdp/src/**/*.py",
    "libs/torch_training/src/**/*.py",
    "libs/training/src/**/*.py",
    "runtime/src/astraflow_runtime/trainer/**/*.py",
    "testing/src/astraflow_testing/table.py",
)
@pytest.mark.timeout(1800)
def test_sharded_ranks_survive_one_of_them_in_each_phase_and_another_number_continues(
    user: User,
) -> None:
    pytest.importorskip("astraflow_plugin_fsdp.trainer")
    user.write("sharded.py", SHARDED)
    ended = user.run_table(
        "run.steps=12",
        "run.deadline_s=240",
        "checkpoint.every=2",
        "launcher.restarts=4",
        "policies.solver.engine.use=sharded:Blind",
        "policies.solver.algorithm.use=grpo",
        "policies.solver.trainer.use=sharded:Sharded",
        "policies.solver.trainer.publish_dtype=float32",
        "policies.solver.trainer.ranks=2",
        deadline_s=1200,
    )
    directory = ended.run_directory
    assert len(list(directory.glob("died-in-*"))) == 2, ended.text
    assert ended.exit_code == 2, ended.text
    (line,) = (line for line in ended.err.splitlines() if line.startswith("astraflow: "))
    assert line == "astraflow: the trainer of 'solver' failed: two ranks are one too many"
    assert steps_made(directory) == list(range(1, 11))

    config = directory / "config.toml"
    config.write_text(config.read_text().replace("ranks = 2", "ranks = 1"))
    ended = user.astraflow("run", "--resume", directory, deadline_s=400)
    assert ended.exit_code == 0, ended.text
    assert steps_made(directory) == list(range(1, 13))
    made = [line for line in metrics(directory) if "step" in line]
    versions = [line["version"] for line in made]
    assert versions == sorted(set(versions))
    assert ended.summary["lost"] == 0
    assert ended.summary["max_staleness_seen"] <= ended.summary["max_staleness_allowed"]
    saved = directory / "checkpoints" / "solver" / "update-00000012" / "checkpoint.json"
    assert json.loads(saved.read_text())["ranks"] == 1
    left = load_file(directory / "models" / "solver" / "model.safetensors")
    assert all(np.isfinite(tensor).all() for tensor in left.values())
    assert user.left_running() == []


def metrics(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def steps_made(directory: Path) -> list[int]:
    """For the first time; what came after the last checkpoint is made again."""
    return [line["step"] for line in metrics(directory) if "step" in line and not line["again"]]
