"""A forked process is to its parent, to the system and to itself as one that was started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from astraflow_runtime.forking.client import CHOICE, OWN
from astraflow_testing.forked_runs import ForkedUser, RunForkServer
from astraflow_testing.runs import User, live_processes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

REPORTING = r"""
import json, logging, os, signal, sys, threading, time
from pathlib import Path

ASTRAFLOW_API = (1, 0)

def lines(name):
    return Path(f"/proc/self/{name}").read_bytes().rstrip(b"\0").decode().split("\0")

with open("/dev/null") as probe:
    lowest = probe.fileno()
Path("report.json").write_text(json.dumps({
    "pid": os.getpid(), "parent": os.getppid(), "session": os.getsid(0), "cwd": os.getcwd(),
    "command": lines("cmdline"), "environment": sorted(lines("environ")), "argv": sys.argv[1:],
    "path": sys.path, "lowest": lowest, "log": len(logging.root.handlers),
    "threads": threading.active_count(), "tasks": len(os.listdir("/proc/self/task")), "main": threading.current_thread() is threading.main_thread(),
    "int": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    "term": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
}))
time.sleep(float(os.environ["LINGER"]))
"""


def somebody(folder: Path, forks: RunForkServer | None) -> User:
    """A user with a plugin that reports what the command is, whose processes have the same marker."""
    folder.mkdir()
    user = ForkedUser(folder, forks) if forks else User(folder)
    info = folder / "astraflow_plugin_reporting-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: astraflow-plugin-reporting\nVersion: 1.0\n"
    )
    (info / "entry_points.txt").write_text("[astraflow]\nreporting = reporting_manifest\n")
    user.write("reporting_manifest.py", REPORTING)
    user.environment |= {"LINGER": "0", "ASTRAFLOW_TEST_MARKER": "same", CHOICE: OWN}
    return user


def report(user: User) -> dict[str, Any]:
    told = (user.directory / "report.json").read_text().replace(str(user.directory), "HERE")
    return dict(json.loads(told))


@pytest.mark.timeout(400)
def test_a_fork_is_as_a_started_process(
    tmp_path: Path, fork_server: RunForkServer, heavy_fork_server: RunForkServer
) -> None:
    reports = []
    servers = {"started": None, "forked": fork_server, "heavy": heavy_fork_server}
    for name, forks in servers.items():
        user = somebody(tmp_path / name, forks)
        process = user.start("plugins")
        ended = user.end(process, 90)
        assert ended.exit_code == 0, ended.text
        reports.append(report(user))
        assert reports[-1].pop("session") == reports[-1].pop("pid") == process.pid
        assert reports[-1].pop("parent") == os.getpid()
    # A fork can be interrupted, also where a shell has started the tests in the background.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        reports[0]["int"] = True
    assert reports[0] == reports[1] == reports[2]


def test_an_error_is_told_with_its_exit_code(tmp_path: Path, fork_server: RunForkServer) -> None:
    ended = ForkedUser(tmp_path, fork_server).astraflow("run", "absent.toml")
    assert (ended.exit_code, ended.out) == (2, "")
    assert "absent.toml" in ended.err


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -15), (signal.SIGKILL, -9)]
)
def test_it_dies_of_signals(
    number: signal.Signals, code: int, tmp_path: Path, fork_server: RunForkServer
) -> None:
    user = somebody(tmp_path / "u", fork_server)
    user.environment |= {"LINGER": "60", "ASTRAFLOW_TEST_MARKER": user.marker}
    process = user.start("plugins")
    user.wait_for((user.directory / "report.json").exists)
    assert live_processes(user.marker) == [process.pid]
    process.send_signal(number)
    assert user.end(process, 20).exit_code == code
    assert user.left_running() == []


def test_what_is_no_module_of_a_run_is_started(fork_server: RunForkServer) -> None:
    with fork_server.forking():
        done = subprocess.run([sys.executable, "-c", "raise SystemExit(3)"], check=False)
    assert done.returncode == 3


THREADS = """
import threading
from concurrent.futures import ThreadPoolExecutor
from astraflow_testing.forked_runs import has_working_threads

assert not has_working_threads()
ends = threading.Event()
with ThreadPoolExecutor(1) as pool:
    pool.submit(int).result()
    until_idle = threading.Event()
    while has_working_threads():
        assert not until_idle.wait(0.01)
    working = pool.submit(ends.wait)
    while not working.running():
        assert not until_idle.wait(0.01)
    assert has_working_threads()
    ends.set()
"""


def test_what_has_a_thread_that_may_hold_a_lock_starts_others_anew() -> None:
    subprocess.run([sys.executable, "-c", THREADS], check=True, timeout=60)
