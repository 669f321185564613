"""Whole runs whose dataflow, launcher or disk fails: they continue, and nothing is lost."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from astraflow_testing.runs import TABLE_RUN, EndedCommand, User, live_commands, live_processes

pytestmark = [
    pytest.mark.timeout(150),
    pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc"),
]
SLOWLY = ("policies.solver.trainer.step_s=0.05", "checkpoint.every=4")


def pid_of(user: User, *words: str) -> int:
    """The process of the user's run that has these words on its command line."""
    found = []
    for pid, line in live_commands(user.marker).items():
        if all(word in line for word in words):
            found.append(pid)
    (pid,) = found
    return pid


def lines(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def check(ended: EndedCommand, steps: int) -> list[dict[str, Any]]:
    """The run finished, every update was made in its turn, and all adds up; returns the repeated ones."""
    assert ended.exit_code == 0, ended.text
    assert ended.summary["steps"] == steps
    assert ended.summary["lost"] == 0
    status = json.loads((ended.run_directory / "status.json").read_text())
    assert status["invariants_ok"]
    made = [line for line in lines(ended.run_directory) if "step" in line]
    assert [line["step"] for line in made if not line["again"]] == list(range(1, steps + 1))
    versions = [line["version"] for line in made]
    assert versions == sorted(set(versions))
    assert max(line["staleness_max"] for line in made) <= ended.summary["max_staleness_allowed"]
    return [line for line in made if line["again"]]


@pytest.mark.slow
def test_a_killed_dataflow_is_started_anew(user: User) -> None:
    process = user.start(*user.table_arguments("run.steps=60", *SLOWLY))
    for steps in (5, 25):
        user.wait_for_steps(steps)
        os.kill(pid_of(user, "dataflow"), signal.SIGKILL)
    ended = user.end(process, 90)
    assert check(ended, 60) == []
    assert ended.summary["restarts"] == 2
    assert "dataflow was killed by SIGKILL and is restarted (restart 1 of 3)" in ended.text
    assert "restored from" in (ended.run_directory / "logs" / "dataflow.log").read_text()
    assert user.left_running() == []


@pytest.mark.slow
def test_each_process_is_killed_in_turn(user: User) -> None:
    process = user.start(*user.table_arguments("run.steps=70", "raas.replicas=2", *SLOWLY))
    victims = [("trainer", "solver"), ("dataflow",), ("raas", "raas-0"), ("dataflow",)]
    for count, words in enumerate(victims):
        user.wait_for_steps(6 + 12 * count)
        os.kill(pid_of(user, *words), signal.SIGKILL)
    ended = user.end(process, 120)
    assert len(check(ended, 70)) <= 4
    assert ended.summary["restarts"] == 4


@pytest.mark.slow
def test_without_a_journal_a_killed_dataflow_fails_the_run(user: User) -> None:
    process = user.start(*user.table_arguments("run.steps=60", "journal.enabled=false", *SLOWLY))
    user.wait_for_steps(5)
    os.kill(pid_of(user, "dataflow"), signal.SIGKILL)
    ended = user.end(process, 60)
    assert ended.exit_code == 1
    assert "dataflow was killed by SIGKILL while the run continued" in ended.text
    assert "--resume" not in ended.text


OWN_REWARD = """
class Reward:
    def __init__(self, config, context): pass
    async def score(self, view): return float(view.text.strip() == view.data["answer"])
"""


def own_project(user: User) -> Path:
    """The config of a run whose data and reward lie beside it, in a folder that is no working directory."""
    project = user.directory / "project"
    project.mkdir()
    prompts = [{"prompt": f"{n:02}=", "answer": f"{99 - n:02}"} for n in range(100)]
    (project / "train.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    (project / "project_reward.py").write_text(OWN_REWARD)
    config = TABLE_RUN.replace('use = "digits"\ndigits = 2', 'use = "jsonl"\npath = "train.jsonl"')
    config = config.replace('use = "exact"\npartial = "positions"', 'use = "project_reward:Reward"')
    (project / "run.toml").write_text(config)
    return project / "run.toml"


@pytest.mark.slow
def test_a_run_is_resumed_by_hand(user: User) -> None:
    settings = ("run.steps=120", "run.directory=runs", *SLOWLY)
    arguments = [part for text in settings for part in ("--set", text)]
    process = user.start("run", own_project(user), *arguments)
    directory = user.wait_for_steps(6)
    refused = user.astraflow("run", "--resume", directory)
    assert refused.exit_code == 2
    assert "a launcher is already running for the run in" in refused.err
    process.send_signal(signal.SIGINT)
    stopped = user.end(process, 60)
    assert stopped.exit_code == 130
    assert f"to continue: astraflow run --resume {directory}" in stopped.out
    made = len([line for line in lines(directory) if "step" in line])

    home, user.directory = user.directory, user.directory / "elsewhere"
    user.directory.mkdir()
    process = user.start("run", "--resume", directory)
    user.wait_for(lambda: len(lines(directory)) >= made + 6)
    user.directory = home
    process.kill()  # the launcher; its processes end by themselves
    process.wait()
    killed = time.monotonic()
    plugins = directory / "plugins.json"
    plugins.write_text(plugins.read_text().replace('"0.1.0"', '"0.0.9"'))

    ended = user.astraflow("run", "--resume", directory, deadline_s=90)
    assert len(check(ended, 120)) <= 4
    assert "resumed" in ended.out
    assert re.search(
        r"note: astraflow-.*: the run started with 0.0.9, but 0.1.0 is installed", ended.out
    )
    assert time.monotonic() - killed < 60

    finished = user.astraflow("run", "--resume", directory)
    assert finished.exit_code == 2
    assert "has already finished" in finished.err


@pytest.mark.slow
def test_what_cannot_be_resumed_is_refused(
    astraflow_here: Callable[..., EndedCommand], tmp_path: Path
) -> None:
    no_run = astraflow_here("run", "--resume", tmp_path)
    assert no_run.exit_code == 2
    assert "run directory" in no_run.err
    with_changes = astraflow_here("run", "--resume", tmp_path, "--set", "run.steps=9")
    assert with_changes.exit_code == 2
    assert "keeps its original configuration" in with_changes.err
    both = astraflow_here("run", "a.toml", "--resume", tmp_path)
    assert both.exit_code == 2


@pytest.mark.slow
def test_a_run_without_checkpoints_cannot_be_resumed(user: User) -> None:
    process = user.start(*user.table_arguments("run.steps=400"))
    directory = user.wait_for_steps(3)
    for pid in live_processes(user.marker):
        os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=10)
    refused = user.astraflow("run", "--resume", directory)
    assert refused.exit_code == 2
    assert "the trainer of 'solver' made" in refused.err
    assert "[checkpoint] every" in refused.err


@pytest.mark.slow
def test_a_run_that_was_killed_before_its_first_checkpoint_continues_from_the_start(
    user: User,
) -> None:
    slow = "policies.solver.trainer.step_s=0.3"  # it is killed long before its last step
    process = user.start(*user.table_arguments("run.steps=14", "checkpoint.every=200", slow))
    directory = user.wait_for_steps(2)
    for pid in live_processes(user.marker):
        os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=10)
    assert not (directory / "checkpoints" / "solver").exists()
    ended = user.astraflow("run", "--resume", directory, deadline_s=90)
    assert check(ended, 14)


def largest_file(pid: int, size: int) -> None:
    """Limit the size of a process's files; larger writes fail."""
    hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size if size >= 0 else hard, hard))


def steps_made(directory: Path) -> int:
    return len([line for line in lines(directory) if "step" in line])


def stand_still(directory: Path, seconds: float = 2.0) -> int:
    """Wait until no further step is made; returns the number of steps."""
    end, made, since = time.monotonic() + 40, steps_made(directory), time.monotonic()
    while time.monotonic() - since < seconds:
        assert time.monotonic() < end, "the run continues"
        time.sleep(0.1)
        if (now := steps_made(directory)) != made:
            made, since = now, time.monotonic()
    return made


@pytest.mark.slow
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_gone_on_from(user: User) -> None:
    process = user.start(*user.table_arguments("run.steps=40", *SLOWLY))
    directory = user.wait_for_steps(13)
    trainer = pid_of(user, "trainer", "solver")
    os.kill(trainer, signal.SIGSTOP)
    saved = sorted((directory / "checkpoints" / "solver").glob("update-*"))
    assert len(saved) >= 2
    damaged = saved[-1] / "table.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    os.kill(trainer, signal.SIGKILL)
    ended = user.end(process, 90)
    assert check(ended, 40)
    log = (ended.run_directory / "logs" / "trainer-solver.log").read_text()
    assert f"{saved[-1]}: table.safetensors has" in log
    assert f"continuing from {saved[-2]}" in log


@pytest.mark.slow
def test_a_full_disk_under_the_journal(user: User) -> None:
    process = user.start(*user.table_arguments("run.steps=40", "run.deadline_s=3", *SLOWLY))
    directory = user.wait_for_steps(5)
    dataflow = pid_of(user, "dataflow")
    largest_file(dataflow, (directory / "journal" / "entries.log").stat().st_size)
    held_at = stand_still(directory)
    time.sleep(4)  # longer than the deadline
    assert steps_made(directory) == held_at < 40
    size = (directory / "journal" / "entries.log").stat().st_size
    largest_file(dataflow, -1)
    user.wait_for(lambda: steps_made(directory) > held_at + 3)
    assert (directory / "journal" / "entries.log").stat().st_size > size
    os.kill(
        pid_of(user, "dataflow"), signal.SIGKILL
    )  # what was held in memory is in the journal now
    ended = user.end(process, 60)
    assert check(ended, 40) == []
    assert "dataflow: no new tasks are leased: there is no disk space for the records" in ended.text
    assert "dataflow: tasks are leased again: there is disk space" in ended.text


@pytest.mark.slow
def test_a_full_disk_under_the_checkpoints(user: User) -> None:
    process = user.start(
        *user.table_arguments("run.steps=40", "run.deadline_s=3", "run.max_staleness=1", *SLOWLY)
    )
    directory = user.wait_for_steps(5)
    largest_file(pid_of(user, "trainer", "solver"), 0)
    held_at = stand_still(directory)
    assert held_at <= 4 + 3 * 4 + 2
    saved = sorted((directory / "checkpoints" / "solver").iterdir())
    largest_file(pid_of(user, "trainer", "solver"), -1)
    ended = user.end(process, 60)
    assert check(ended, 40) == []
    assert sorted((directory / "checkpoints" / "solver").iterdir()) != saved
    assert "dataflow: no new tasks are leased: the trainer of 'solver' has saved no" in ended.text


@pytest.mark.slow
def test_a_full_disk_at_the_end_is_waited_for(user: User) -> None:
    """Without checkpoints all the work would be lost with what is saved at the end."""
    process = user.start(*user.table_arguments("run.steps=8", "policies.solver.trainer.step_s=0.2"))
    directory = user.wait_for_steps(2)
    trainer = pid_of(user, "trainer", "solver")
    largest_file(trainer, 0)
    user.wait_for((directory / "checkpoints" / "solver").exists, 60)
    stand_still(directory)
    assert not (directory / "models" / "solver").exists()
    largest_file(trainer, -1)
    ended = user.end(process, 60)
    assert check(ended, 8) == []
    assert [p.name for p in (directory / "checkpoints" / "solver").iterdir()] == ["update-00000008"]
    assert (directory / "models" / "solver" / "model.safetensors").stat().st_size
    assert "there is disk space again" in ended.text
