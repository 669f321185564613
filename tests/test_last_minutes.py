"""Whole runs whose dataflow or trainer is killed when all updates are done, or when the run is to stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from astraflow_testing.runs import TABLE_RUN, EndedCommand, User, live_commands

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc"),
]

PARTS = '''
"""A table trainer that writes its model as soon as it may, and dies of it once if it is to."""
import os
import signal
import time
from pathlib import Path

from astraflow_testing.table import TableTrainer  # noqa: F401


class Slow(TableTrainer):
    def __init__(self, config, context):
        super().__init__(config, context)
        self.run = Path(context.run.directory)

    def save_model(self, directory):
        super().save_model(directory)
        (self.run / "saving").touch()
        until = time.monotonic() + 60
        while not (self.run / "may-save").exists() and time.monotonic() < until:
            time.sleep(0.02)


class Dying(TableTrainer):
    def __init__(self, config, context):
        super().__init__(config, context)
        self.run = Path(context.run.directory)

    def save(self, directory):
        super().save(directory)
        if directory.name == ".update-00000010.partial" and not (self.run / "died").exists():
            (self.run / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
'''


def start(user: User, trainer: str, *overrides: str) -> subprocess.Popen[str]:
    user.write("last_minutes.py", PARTS)
    config = TABLE_RUN.replace("astraflow_testing.table:TableTrainer", f"last_minutes:{trainer}")
    return user.start(*user.table_arguments("run.steps=10", *overrides, config=config))


def pid_of(user: User, word: str) -> int:
    """The one process of the user's run with this word on its command line."""
    (pid,) = (pid for pid, line in live_commands(user.marker).items() if word in line)
    return pid


def kill(user: User, word: str) -> int:
    """SIGKILL to :func:`pid_of`."""
    pid = pid_of(user, word)
    os.kill(pid, signal.SIGKILL)
    return pid


@contextmanager
def held(user: User, word: str) -> Iterator[None]:
    """:func:`pid_of` is stopped meanwhile."""
    pid = pid_of(user, word)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def steps(directory: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if "step" in line]


def check(user: User, ended: EndedCommand) -> None:
    assert ended.exit_code == 0, ended.text
    assert ended.summary["state"] == "finished"
    assert (load_file(ended.run_directory / "models/solver/model.safetensors")["logits"] != 0).any()
    assert list(ended.run_directory.glob("checkpoints/solver/update-00000010"))
    assert not list(ended.run_directory.rglob("*.partial"))
    assert not list(ended.run_directory.rglob("received-*"))
    assert user.left_running() == []


@pytest.mark.parametrize("journal", [True, False])
def test_the_dataflow_is_killed_while_the_model_is_saved(user: User, journal: bool) -> None:
    process = start(user, "Slow", f"journal.enabled={str(journal).lower()}")
    user.wait_for(lambda: bool(list(user.directory.glob("runs/*/saving"))))
    (directory,) = user.directory.glob("runs/*")
    user.wait_for(lambda: "finished" in _status(directory))
    before = kill(user, "dataflow")
    facts = directory / "dataflow.json"
    if journal:
        user.wait_for(lambda: json.loads(facts.read_text())["pid"] != before)
    (directory / "may-save").touch()
    ended = user.end(process, 60)
    check(user, ended)
    how = ", and is restarted (restart 1 of 3)" if journal else "; they can continue without it"
    assert (
        "dataflow was killed by SIGKILL after the end of the run, while trainers save" in ended.text
    )
    assert how in ended.text


def test_a_trainer_is_killed_in_its_last_save(user: User) -> None:
    ended = user.end(start(user, "Dying", "checkpoint.every=4"), 60)
    check(user, ended)
    assert "trainer-solver was killed by SIGKILL while it saved its model" in ended.text
    made = steps(ended.run_directory)
    assert [line["step"] for line in made if not line["again"]] == list(range(1, 11))
    assert [line["step"] for line in made if line["again"]][-2:] == [9, 10]
    assert ended.summary["lost"] == 0


def test_a_trainer_without_checkpoints_is_killed_in_its_last_save(user: User) -> None:
    ended = user.end(start(user, "Dying"), 60)
    assert ended.exit_code == 1
    assert "trainer-solver was killed by SIGKILL before its model was saved" in ended.err
    assert "Set [checkpoint] every" in ended.err
    assert not list(ended.run_directory.rglob("*.partial"))
    assert user.left_running() == []


@pytest.mark.parametrize("journal", [True, False])
def test_ctrl_c_and_then_the_dataflow_is_killed_at_once(user: User, journal: bool) -> None:
    slowly = ("run.steps=100000", "policies.solver.trainer.step_s=0.1", "checkpoint.every=5")
    process = start(user, "TableTrainer", *slowly, f"journal.enabled={str(journal).lower()}")
    directory = user.wait_for_steps(6)
    with held(user, "trainer"):  # so that it still has to save when the dataflow has exited
        process.send_signal(signal.SIGINT)
        kill(user, "dataflow")
    ended = user.end(process, 60)
    assert ended.exit_code == 130, ended.text
    assert ended.summary["state"] == "stopped"
    assert (directory / "models/solver/model.safetensors").exists()
    assert list(directory.glob("checkpoints/solver/update-*"))
    assert user.left_running() == []
    how = "is restarted" if journal else "is not restarted; trainers save and exit"
    assert f"dataflow was killed by SIGKILL and {how}" in ended.text
    if journal:
        resumed = user.start("run", "--resume", directory)
        made = len(steps(directory))
        user.wait_for(lambda: len(steps(directory)) >= made + 3)
        resumed.send_signal(signal.SIGINT)
        assert user.end(resumed, 60).exit_code == 130


def _status(directory: Path) -> str:
    """State in the log of the dataflow."""
    return (directory / "logs" / "dataflow.log").read_text()
