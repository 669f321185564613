"""A run from its start to what it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from astraflow_testing.runs import TABLE_RUN, EndedCommand, User, live_processes

pytestmark = pytest.mark.timeout(120)

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


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[User, EndedCommand]]:
    """A short run with evaluations, and whose it was."""
    user = User(tmp_path_factory.mktemp("first"))
    yield user, user.run_table("run.steps=8", config=EVALUATED)
    user.close()


def test_a_run_leaves_what_it_promises(first_run: tuple[User, EndedCommand]) -> None:
    user, ended = first_run
    assert ended.exit_code == 0, ended.text
    summary, directory = ended.summary, ended.run_directory
    assert not SUMMARY_FIELDS - summary.keys()
    assert summary["steps"] == 8 and summary["versions"] == 8
    assert summary["lost"] == summary["duplicated"] == summary["failed"] == 0
    assert summary["max_staleness_seen"] <= summary["max_staleness_allowed"] == 2
    assert summary["tokens_trained"] >= 8 * 32
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "step" in line] == list(range(1, 9))
    evaluated = [line["eval"]["version"] for line in lines if "eval" in line]
    assert evaluated == [0, 4, 8]
    for name in (
        "config.toml",
        "plugins.json",
        "logs",
        "curves.png",
        "models/solver/model.safetensors",
    ):
        assert (directory / name).exists(), name
    origins = json.loads((directory / "origins.json").read_text())
    assert origins["run.group_size"].endswith("table.toml")
    assert origins["run.task_attempts"] == "default"
    assert list((directory / "checkpoints" / "solver").iterdir())
    assert oct((directory / "token").stat().st_mode & 0o777) == "0o600"
    assert user.left_running() == []


@pytest.mark.slow
def test_the_resolved_config_runs_again(first_run: tuple[User, EndedCommand], user: User) -> None:
    resolved = (first_run[1].run_directory / "config.toml").read_text()
    ended = user.run_table("run.directory=runs", config=resolved)
    assert ended.exit_code == 0, ended.text
    assert ended.summary["steps"] == 8


@pytest.mark.slow
def test_staleness_zero_is_exactly_synchronous(user: User) -> None:
    """Every trained token was sampled by the version that its batch updated."""
    overrides = ["run.max_staleness=0", "run.steps=6", "raas.replicas=2"]
    ended = user.run_table(*overrides, config=EVALUATED)
    assert ended.exit_code == 0, ended.text
    assert ended.summary["max_staleness_seen"] == ended.summary["max_staleness_allowed"] == 0
    lines = (ended.run_directory / "metrics.jsonl").read_text().splitlines()
    steps = [line for line in map(json.loads, lines) if "step" in line]
    assert [line["staleness"] for line in steps] == [{"0": 32}] * 6


@pytest.mark.slow
def test_a_raas_may_die_and_another_may_join(user: User) -> None:
    process = user.start(
        *user.table_arguments("run.steps=60", "run.max_staleness=1", "raas.replicas=2")
    )
    directory = user.wait_for_steps(3)
    victim = next(
        pid for pid in live_processes(user.marker) if _is_raas(pid, "raas-0", str(directory))
    )
    os.kill(victim, signal.SIGKILL)
    ended = user.end(process, 60)
    assert ended.exit_code == 0, ended.text
    summary = ended.summary
    assert summary["steps"] == 60 and summary["lost"] == 0
    assert any("raas-0" in line for line in ended.text.splitlines())
    steps = [
        json.loads(line)["step"]
        for line in (directory / "metrics.jsonl").read_text().splitlines()
        if '"step"' in line
    ]
    assert all(after == before + 1 for before, after in pairwise(steps))


@pytest.mark.slow
def test_every_evaluation_is_made_whichever_raas_dies(user: User) -> None:
    """The host of an evaluation may be killed at any moment; another one, or its successor, continues."""
    overrides = ["run.steps=60", "run.max_staleness=1", "raas.replicas=2", "eval.every=3"]
    process = user.start(*user.table_arguments(*overrides, config=EVALUATED))
    directory = user.wait_for_steps(1)
    for count, name in enumerate(["raas-0", "raas-1", "raas-0", "raas-1"]):
        user.wait_for_steps(4 + 4 * count)
        for pid in live_processes(user.marker):
            if _is_raas(pid, name, str(directory)):
                os.kill(pid, signal.SIGKILL)
    ended = user.end(process, 90)
    assert ended.exit_code == 0, ended.text
    assert ended.summary["steps"] == 60 and ended.summary["lost"] == 0
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    evaluations = [line["eval"] for line in map(json.loads, lines) if "eval" in line]
    assert evaluations[0]["version"] == 0 and evaluations[-1]["version"] == 60
    assert all(entry["sets"]["held_out"]["failed"] == 0 for entry in evaluations), evaluations


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


def _is_raas(pid: int, name: str, directory: str) -> bool:
    return _is_role(pid, "raas", name, directory)


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
def test_ctrl_c_before_anybody_but_the_dataflow_is_there(user: User) -> None:
    """Trainer and RaaS come when the run has ended already, and must learn of it."""
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
    """Nor do engine hosts, a reward worker that hears no SIGTERM, and what that has started."""
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


@pytest.mark.slow
def test_the_sockets_of_killed_raas_do_not_pile_up(user: User, sockets: Path) -> None:
    process = user.start(*user.table_arguments("run.steps=60"))
    directory = user.wait_for_steps(3)
    for count in (1, 2):
        victim = next(
            p for p in live_processes(user.marker) if _is_raas(p, "raas-0", str(directory))
        )
        os.kill(victim, signal.SIGKILL)
        user.wait_for_steps(3 + 15 * count)
        assert len(list(sockets.glob("astraflow-*"))) == 1
    ended = user.end(process, 60)
    assert ended.exit_code == 0 and ended.summary["restarts"] == 2, ended.text
    assert not list(sockets.glob("astraflow-*"))
