"""A run from its start to what it leaves behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from astraflow_testing.runs import TABLE_RUN, EndedCommand, User, live_processes

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("new_interpreters")]

SUMMARY_FIELDS = {
    "steps",
    "wall_s",
    "cpu_s",
    "setup_s",
    "reward_first",
    "reward_last",
    "eval_first",
    "eval_last",
    "tokens_generated",
    "tokens_trained",
    "versions",
    "max_staleness_seen",
    "max_staleness_allowed",
    "admitted",
    "accepted",
    "rejected",
    "failed",
    "lost",
    "duplicated",
    "trainer_wait_fraction",
    "processes",
}

EVALUATED = (
    TABLE_RUN
    + """
[eval]
every = 4
sets.held_out = { use = "digits", digits = 2, size = 8, split = "held_out" }
"""
)


def test_a_run_leaves_what_it_promises(user: User) -> None:
    ended = user.run_table("run.steps=8", config=EVALUATED)
    assert ended.exit_code == 0, ended.text
    summary, directory = ended.summary, ended.run_directory
    assert not SUMMARY_FIELDS - summary.keys()
    assert summary["steps"] == 8 and summary["versions"] == 8
    assert summary["lost"] == summary["duplicated"] == summary["failed"] == 0
    assert summary["max_staleness_seen"] <= summary["max_staleness_allowed"] == 2
    assert summary["tokens_trained"] >= 8 * 32
    lines = _lines(ended)
    assert [line["step"] for line in lines if "step" in line] == list(range(1, 9))
    evaluated = [line["eval"]["version"] for line in lines if "eval" in line]
    assert evaluated == [0, 4, 8]
    for name in (
        "config.toml",
        "plugins.json",
        "logs",
        "models/solver/model.safetensors",
    ):
        assert (directory / name).exists(), name
    origins = json.loads((directory / "origins.json").read_text())
    assert origins["run.group_size"].endswith("table.toml")
    assert origins["run.task_attempts"] == "default"
    assert list((directory / "checkpoints" / "solver").iterdir())
    assert oct((directory / "token").stat().st_mode & 0o777) == "0o600"
    assert user.left_running() == []


def _lines(ended: EndedCommand) -> list[dict[str, Any]]:
    text = (ended.run_directory / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_raas_may_die_and_the_resolved_config_runs_again(user: User, sockets: Path) -> None:
    """The host of an evaluation may be killed at any moment; another one, or its successor, continues."""
    overrides = ["run.steps=40", "run.max_staleness=1", "raas.replicas=2", "eval.every=3"]
    process = user.start(*user.table_arguments(*overrides, config=EVALUATED))
    directory = user.wait_for_steps(1)
    for count, name in enumerate(["raas-0", "raas-1", "raas-0", "raas-1"]):
        user.wait_for_steps(4 + 4 * count)
        _kill_raas(user, name, directory)
    user.wait_for_steps(30)
    user.wait_for(lambda: len(list(sockets.glob("astraflow-*"))) == 2)
    ended = user.end(process, 90)
    assert ended.exit_code == 0, ended.text
    assert ended.summary["steps"] == 40 and ended.summary["lost"] == 0
    assert ended.summary["restarts"] == 4
    assert not list(sockets.glob("astraflow-*"))
    assert "raas-0" in ended.text and "raas-1" in ended.text
    assert [line["step"] for line in _lines(ended) if "step" in line] == list(range(1, 41))
    evaluations = [line["eval"] for line in _lines(ended) if "eval" in line]
    assert evaluations[0]["version"] == 0 and evaluations[-1]["version"] == 40
    assert all(entry["sets"]["held_out"]["failed"] == 0 for entry in evaluations), evaluations
    shutil.move(directory, user.directory / "before")
    exactly_synchronous(user, (user.directory / "before" / "config.toml").read_text())


RECORDER = '''
"""A trainer that writes down which versions sampled what it trains."""

import json
from pathlib import Path

from astraflow_testing.table import TableTrainer


class Recorder(TableTrainer):
    def step(self, batch, algorithm, step):
        trained = sorted(set(batch.versions[batch.loss_mask].tolist()))
        with Path("trained.jsonl").open("a") as file:
            file.write(json.dumps({"updates": batch.version, "trained": trained}) + "\\n")
        return super().step(batch, algorithm, step)
'''


def exactly_synchronous(user: User, resolved: str) -> None:
    """With staleness 0 every trained token was sampled by the version that its batch updated."""
    user.write("recorder.py", RECORDER)
    ended = user.run_table(
        "run.directory=runs", "run.max_staleness=0", "run.steps=6", "eval.every=4",
        "policies.solver.mini_batches=2", "policies.solver.engine.replicas=2",
        "policies.solver.trainer.use=recorder:Recorder", config=resolved, deadline_s=150,
    )  # fmt: skip
    assert ended.exit_code == 0, ended.text
    assert not (ended.run_directory / "curves.png").exists()  # ASTRAFLOW_CURVES=none
    assert [line["eval"]["version"] for line in _lines(ended) if "eval" in line] == [0, 4, 6]
    assert ended.summary["max_staleness_seen"] == ended.summary["max_staleness_allowed"] == 0
    assert [line["staleness"] for line in _lines(ended) if "step" in line] == [{"0": 32}] * 6
    made = [
        json.loads(line) for line in (user.directory / "trained.jsonl").read_text().splitlines()
    ]
    assert [entry["updates"] for entry in made] == [n for n in range(6) for _ in range(2)]
    assert all(entry["trained"] == [entry["updates"]] for entry in made)


@pytest.mark.slow
def test_a_killed_trainer_continues_from_its_checkpoint(user: User) -> None:
    """Every update is made, once more if no checkpoint holds it, and version version numbers must increase."""
    process = user.start(
        *user.table_arguments(
            "run.steps=40", "checkpoint.every=5", "policies.solver.trainer.step_s=0.1",
            "eval.every=10", config=EVALUATED,
        )
    )  # fmt: skip
    directory = user.wait_for_steps(1)
    for steps in (8, 22):
        user.wait_for_steps(steps)
        for pid in live_processes(user.marker):
            if _is_role(pid, "trainer", "solver", str(directory)):
                os.kill(pid, signal.SIGKILL)
    ended = user.end(process, 90)
    assert ended.exit_code == 0, ended.text
    assert ended.summary["steps"] == 40 and ended.summary["restarts"] == 2
    assert ended.summary["lost"] == ended.summary["duplicated"] == 0
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    steps = [line for line in map(json.loads, lines) if "step" in line]
    assert [line["step"] for line in steps if not line["again"]] == list(range(1, 41))
    repeated = [line["step"] for line in steps if line["again"]]
    assert repeated and all(step not in (5, 10, 15, 20) for step in repeated)
    versions = [line["version"] for line in steps]
    assert all(later > earlier for earlier, later in pairwise(versions))
    log = (directory / "logs" / "trainer-solver.log").read_text()
    assert log.count("continuing from") == 2


def _kill_raas(user: User, name: str, directory: Path) -> None:
    """As soon as it is there."""

    def found() -> list[int]:
        pids = live_processes(user.marker)
        return [pid for pid in pids if _is_role(pid, "raas", name, str(directory))]

    user.wait_for(lambda: bool(found()))
    (victim,) = found()
    os.kill(victim, signal.SIGKILL)


def _is_role(pid: int, role: str, name: str, directory: str) -> bool:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        words = file.read().decode().split("\0")
    return role in words and name in words and any(directory in word for word in words)


@pytest.mark.slow
def test_ctrl_c_once_ends_cleanly_and_leaves_a_checkpoint(user: User) -> None:
    process = user.start(*user.table_arguments("run.steps=100000"))
    directory = user.wait_for_steps(3)
    process.send_signal(signal.SIGINT)
    ended = user.end(process, 40)
    assert ended.exit_code == 130, ended.text
    assert ended.summary["steps"] >= 3
    assert list((directory / "checkpoints" / "solver").glob("update-*/checkpoint.json"))
    assert user.left_running() == []


@pytest.mark.slow
def test_ctrl_c_before_trainer_and_raas_have_registered(user: User) -> None:
    """Trainer and RaaS register after the run has ended, and must exit."""
    process = user.start(*user.table_arguments("run.steps=100000"))
    user.wait_for(lambda: any(user.directory.glob("runs/*/dataflow.json")))
    process.send_signal(signal.SIGINT)
    ended = user.end(process, 40)
    assert ended.exit_code == 130, ended.text
    assert user.left_running() == []


@pytest.fixture
def sockets(user: User) -> Iterator[Path]:
    """Where the sockets of the user's RaaS are; a path short enough for them."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        user.environment["TMPDIR"] = folder
        yield Path(folder)
        user.close()


@pytest.mark.slow
def test_ctrl_c_twice_ends_at_once(user: User, sockets: Path) -> None:
    process = user.start(
        *user.table_arguments("run.steps=100000", "policies.solver.trainer.step_s=1.0")
    )
    user.wait_for_steps(1)
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)  # two that are pending at once count as one
    process.send_signal(signal.SIGINT)
    assert user.end(process, 10).exit_code == 130
    assert user.left_running() == []
    assert not list(sockets.iterdir())


DEAF_REWARD = """
import signal, subprocess, time
from pathlib import Path

class Deaf:
    capabilities = ("blocking",)

    def __init__(self, config, context):
        pass

    def score(self, view):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.child = subprocess.Popen(["sleep", "1000"])
        Path("asked").touch()
        time.sleep(1000)
"""


@pytest.mark.slow
def test_a_killed_launcher_leaves_nothing_running(user: User, sockets: Path) -> None:
    """Nor do engine hosts, a reward worker that ignores SIGTERM, and what that has started."""
    user.write("deaf_reward.py", DEAF_REWARD)
    deaf = TABLE_RUN.replace('use = "exact"\npartial = "positions"', 'use = "deaf_reward:Deaf"')
    user.environment["ASTRAFLOW_DRY_CALL_S"] = "none"
    process = user.start(*user.table_arguments("raas.reward_deadline_s=1000", config=deaf))
    user.wait_for((user.directory / "asked").exists)
    lines = b"".join(
        Path(f"/proc/{pid}/cmdline").read_bytes() for pid in live_processes(user.marker)
    )
    started = [
        b"astraflow_engine_host.main",
        b"rewards.worker",
        b"sleep",
        b"dataflow",
        b"trainer",
    ]
    assert all(part in lines for part in started)
    process.kill()
    user.end(process, 10)
    assert user.left_running(within_s=8) == []
    assert not list(sockets.iterdir())
