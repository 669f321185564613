"""The processes of a local run are forked from a process that has imported; the run is as ever otherwise."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from astraflow_runtime.forking.client import CHOICE, OWN
from astraflow_testing.runs import User, live_processes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(150),
    pytest.mark.usefixtures("new_interpreters"),
    pytest.mark.skipif(sys.platform != "linux", reason="forks as Linux does"),
]
TRAINER = '''
import os
from pathlib import Path
from astraflow_testing.table import TableTrainer

with Path(__file__).with_name("imports.txt").open("a") as file:
    file.write(f"{os.getpid()}\\n")

class Imported(TableTrainer):
    """Tells who has imported it."""
'''
SERVER = "astraflow_runtime.forking.server"


@dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    words: tuple[str, ...]


def processes(user: User) -> list[Process]:
    """All processes of the user, as the system lists them."""
    found = []
    for pid in live_processes(user.marker):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode().split("\0")
        status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        found.append(Process(pid, int(status[1]), tuple(words)))
    return found


def the(user: User, *words: str) -> Process:
    (found,) = [process for process in processes(user) if set(words) <= set(process.words)]
    return found


def arguments(user: User) -> list[str]:
    user.write("imported.py", TRAINER)
    return user.table_arguments(
        "run.steps=60", "policies.solver.trainer.step_s=0.1",
        "policies.solver.trainer.use=imported:Imported",
    )  # fmt: skip


def importers(user: User) -> set[int]:
    return {int(line) for line in (user.directory / "imports.txt").read_text().split()}


def test_processes_are_forks_and_children_of_those_that_need_them(user: User) -> None:
    launcher = user.start(*arguments(user))
    directory = user.wait_for_steps(1)
    trainer, raas = the(user, "trainer"), the(user, "raas")
    host = the(user, "astraflow_engine_host.main")
    servers = {p.parent: p.pid for p in processes(user) if SERVER in p.words}
    dataflow = the(user, "dataflow")
    assert trainer.parent == raas.parent == dataflow.parent == launcher.pid
    assert host.parent == raas.pid
    assert set(servers) == {launcher.pid, raas.pid}
    assert servers[launcher.pid] in importers(user) and trainer.pid not in importers(user)

    os.kill(dataflow.pid, signal.SIGKILL)
    user.wait_for(
        lambda: {p.pid for p in processes(user) if "dataflow" in p.words} - {dataflow.pid}
    )
    assert the(user, "dataflow").parent == launcher.pid

    os.kill(raas.pid, signal.SIGKILL)
    user.wait_for(
        lambda: {raas.pid, host.pid, servers[raas.pid]}.isdisjoint(live_processes(user.marker))
    )
    user.wait_for(lambda: any("astraflow_engine_host.main" in p.words for p in processes(user)))
    assert the(user, "astraflow_engine_host.main").parent == the(user, "raas").pid != raas.pid

    os.kill(servers[launcher.pid], signal.SIGKILL)
    os.kill(the(user, "raas").pid, signal.SIGKILL)
    ended = user.end(launcher, 90)
    assert ended.exit_code == 0, ended.text
    assert ended.summary["steps"] == 60 and ended.summary["restarts"] == 3
    assert ended.summary["lost"] == ended.summary["duplicated"] == 0
    assert (directory / "logs" / "imports.log").read_text() == ""
    assert user.left_running() == []


def test_processes_can_import_on_their_own(user: User) -> None:
    user.environment[CHOICE] = OWN
    launcher = user.start(*arguments(user))
    directory = user.wait_for_steps(1)
    assert the(user, "trainer").pid in importers(user)
    assert not [p for p in processes(user) if SERVER in p.words]
    assert not (directory / "logs" / "imports.log").exists()
    launcher.send_signal(signal.SIGINT)
    assert user.end(launcher, 60).exit_code == 130


def test_nothing_outlives_a_launcher_that_is_killed(user: User) -> None:
    launcher = user.start(*arguments(user))
    user.wait_for_steps(1)
    launcher.kill()
    launcher.wait()
    assert user.left_running(20) == []
