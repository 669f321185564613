"""A process that somebody stops for longer than its deadline is named and waited for; the run continues with
it when it returns."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from astraflow_testing.runs import EndedCommand, User, live_commands, live_processes

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc"),
]

DEADLINE_S = 3
STOPPED_S = 7.0
PATIENT = ("run.steps=40", "run.lease_s=1.5", "policies.solver.trainer.step_s=0.1")
HOST = "the engine host of policy 'solver' in raas-0"
WORDS = {
    "dataflow": ["dataflow"],
    "trainer-solver": ["trainer", "solver"],
    "raas-0": ["raas", "raas-0"],
    "raas-1": ["raas", "raas-1"],
    HOST: ["astraflow_engine_host.main", "/raas-0/"],
}


def pid_of(user: User, name: str) -> int:
    """The process of that name among those of the user's run."""
    found = []
    for pid, words in live_commands(user.marker).items():
        line = "\0".join(words)
        whole = [word for word in WORDS[name] if "/" not in word]
        if all(word in words for word in whole) and all(word in line for word in WORDS[name]):
            found.append(pid)
    (pid,) = found
    return pid


def start(user: User, *overrides: str, deadline_s: float = DEADLINE_S) -> subprocess.Popen[str]:
    """A run that makes its first steps."""
    arguments = user.table_arguments(*PATIENT, f"run.deadline_s={deadline_s}", *overrides)
    process = user.start(*arguments)
    user.wait_for_steps(3)
    return process


def ask(directory: Path, what: str) -> Any:
    """``GET /v1/WHAT`` of the dataflow."""
    url = json.loads((directory / "dataflow.json").read_text())["url"]
    token = (directory / "token").read_text().strip()
    request = urllib.request.Request(
        f"{url}/v1/{what}", headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(request, timeout=5) as response:
        return json.load(response)


def all_serve_the_newest(directory: Path) -> bool:
    """Whether no RaaS is fetching a version, or about to."""
    status = ask(directory, "status")
    newest = status["policies"]["solver"]["version"]
    return all(raas["serving"] == {"solver": newest} for raas in status["raas"])


def hold(
    pid: int, directory: Path, seconds: float, watch: bool = True, whom: str = ""
) -> list[dict[str, Any]]:
    """Stop a process for a while, and at most half a minute longer until a process waits for ``whom``; returns the
    waits that were reported meanwhile."""
    seen: list[dict[str, Any]] = []
    os.kill(pid, signal.SIGSTOP)
    end = time.monotonic() + seconds
    while (now := time.monotonic()) < end or (
        whom and now < end + 30 and not any(wait["for_whom"] == whom for wait in seen)
    ):
        time.sleep(0.5)
        if watch:
            seen += ask(directory, "waits")
    os.kill(pid, signal.SIGCONT)
    return seen


def check(ended: EndedCommand, steps: int = 40) -> None:
    """The run finished, with nothing lost or doubled and no process replaced."""
    assert ended.exit_code == 0, ended.text
    summary = ended.summary
    assert summary["steps"] == steps
    assert summary["lost"] == summary["duplicated"] == 0
    assert summary["restarts"] == 0
    status = json.loads((ended.run_directory / "status.json").read_text())
    assert status["invariants_ok"]


def diagnosis(ended: EndedCommand) -> str:
    return (ended.run_directory / "diagnosis.txt").read_text()


@pytest.mark.parametrize("name", ["raas-0", "trainer-solver", HOST])
def test_a_stopped_process_is_waited_for(user: User, name: str) -> None:
    # A trainer is stopped while no RaaS fetches from it, since a fetch has its own deadline.
    process = start(user, "run.steps=12", "policies.solver.trainer.step_s=1.0")
    directory = next(user.directory.glob("runs/*"))
    pid = pid_of(user, name)
    user.wait_for(lambda: all_serve_the_newest(directory))
    seen = hold(pid, directory, STOPPED_S)
    whom = name.replace("-", " ", 1) if name.startswith("trainer") else name
    named = [wait for wait in seen if wait["for_whom"] == whom]
    assert named and max(wait["since_s"] for wait in named) > DEADLINE_S, seen
    assert not [w for w in named if w["until_s"] <= 0 and w["since_s"] < 4 * DEADLINE_S]
    ended = user.end(process, 60)
    check(ended, steps=12)
    assert f"`kill -CONT {pid}` resumes it" in ended.text
    goes_on = [line for line in ended.text.splitlines() if "continues after" in line]
    assert len(goes_on) == 1 and name in goes_on[0]
    assert ended.text.count("no progress for") == 1
    told = diagnosis(ended).partition("waiting for:\n")[2]
    assert told.splitlines()[0].strip().startswith(name), diagnosis(ended)


def test_a_stopped_dataflow_is_waited_for(user: User) -> None:
    process = start(user)
    directory = next(user.directory.glob("runs/*"))
    pid = pid_of(user, "dataflow")
    hold(pid, directory, STOPPED_S, watch=False)
    ended = user.end(process, 60)
    check(ended)
    assert f"dataflow is stopped (SIGSTOP); the run waits for it; `kill -CONT {pid}`" in ended.text
    assert "the dataflow has not responded for" in ended.text
    assert "the dataflow responds again after" in ended.text
    assert f"dataflow (pid {pid}) has been stopped for" in diagnosis(ended)
    assert "no progress for" not in ended.text


def test_the_other_raas_continues_while_one_is_stopped(user: User) -> None:
    process = start(user, "raas.replicas=2", "run.steps=70", "policies.solver.trainer.step_s=0.2")
    directory = next(user.directory.glob("runs/*"))
    before = (directory / "metrics.jsonl").read_text().count('"step"')
    seen = hold(pid_of(user, "raas-1"), directory, STOPPED_S, whom="raas-1")
    assert [wait for wait in seen if wait["for_whom"] == "raas-1"]
    after = (directory / "metrics.jsonl").read_text().count('"step"')
    assert after >= before + 20
    ended = user.end(process, 60)
    check(ended, steps=70)
    assert "raas-1 is stopped (SIGSTOP)" in ended.text
    assert "no progress for" not in ended.text


def test_all_processes_but_the_launcher_are_stopped_and_continue(user: User) -> None:
    """As when a machine or its containers are frozen: no process counts the time as silence of the others."""
    process = start(user)
    pids = [pid for pid in live_processes(user.marker) if pid != process.pid]
    assert len(pids) >= 4
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(STOPPED_S)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    check(user.end(process, 60))


@pytest.mark.parametrize("name", ["raas-0", "trainer-solver", "dataflow"])
def test_a_process_that_stays_stopped_fails_the_run_in_the_end(user: User, name: str) -> None:
    process = start(user, "run.steps=100000", deadline_s=1.5)
    os.kill(pid_of(user, name), signal.SIGSTOP)
    ended = user.end(process, 60)
    assert ended.exit_code == 1, ended.text
    said = {
        "raas-0": "no RaaS has reported for",
        "trainer-solver": "the trainer of 'solver' was silent for",
        "dataflow": "the dataflow has not responded for",
    }
    assert said[name] in ended.err
    assert f"{name} (pid " in diagnosis(ended) and "has been stopped for" in diagnosis(ended)
    assert user.left_running() == []


def test_a_stopped_engine_host_does_not_outlive_its_raas(user: User) -> None:
    process = start(user, "run.steps=40")
    host = pid_of(user, HOST)
    os.kill(host, signal.SIGSTOP)
    os.kill(pid_of(user, "raas-0"), signal.SIGKILL)
    user.wait_for(lambda: host not in live_processes(user.marker))
    ended = user.end(process, 60)
    assert ended.exit_code == 0, ended.text
    assert "raas-0 was killed by SIGKILL and is restarted (restart 1 of 3)" in ended.text
    assert user.left_running() == []


def test_a_killed_launcher_leaves_none_behind_that_is_stopped(user: User) -> None:
    process = start(user, "run.steps=100000")
    stopped = [pid for pid in live_processes(user.marker) if pid != process.pid]
    assert len(stopped) >= 4
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    process.kill()
    process.wait()
    assert user.left_running() == []
