"""What may be a fork, and what becomes of one that cannot be."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from astraflow_core.errors import UserError
from astraflow_runtime.forking.becoming import ROOM, ModuleProcess
from astraflow_runtime.forking.client import CHOICE, OWN, ModuleForks, is_possible
from astraflow_runtime.forking.server import MOST_BYTES
from astraflow_testing.runs import TABLE_RUN

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(sys.platform != "linux", reason="forks as Linux does"),
]
WORDS = [sys.executable, "-m", "astraflow_runtime", "raas"]
ENVIRONMENT = {"PATH": "/bin", "OMP_NUM_THREADS": "1", "ASTRAFLOW_TOKEN": "a"}


@pytest.fixture
def ends() -> Iterator[tuple[ModuleForks, socket.socket]]:
    """A server, and the end of its socket where the process that forks would be."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = ModuleForks(ours, ENVIRONMENT)
    with theirs:
        yield server, theirs
    server.close()


def process(**changed: str) -> ModuleProcess:
    return ModuleProcess(WORDS, "/", ENVIRONMENT | changed, True, True)


def test_a_module_of_this_interpreter_can_be_a_fork(
    ends: tuple[ModuleForks, socket.socket],
) -> None:
    server, _ = ends
    assert server.can_fork(WORDS, ENVIRONMENT)
    assert server.can_fork(WORDS, ENVIRONMENT | {"ASTRAFLOW_TOKEN": "b", "ASTRAFLOW_START": "2"})


@pytest.mark.parametrize(
    ("words", "environment"),
    [
        (["/other/python", *WORDS[1:]], {}),
        ([sys.executable, "-m", "torch.distributed.run"], {}),
        ([sys.executable, "-c", "pass"], {}),
        (WORDS, {"OMP_NUM_THREADS": "2"}),
        (WORDS, {"CUDA_VISIBLE_DEVICES": "0"}),
        (WORDS, {"ASTRAFLOW_TOKEN": "x" * len(ROOM)}),
    ],
    ids=["interpreter", "module", "program", "threads", "devices", "size"],
)
def test_what_a_fork_cannot_be_is_started(
    words: list[str], environment: dict[str, str], ends: tuple[ModuleForks, socket.socket]
) -> None:
    server, _ = ends
    assert not server.can_fork(words, ENVIRONMENT | environment)


def test_a_variable_that_is_missing_is_a_difference(
    ends: tuple[ModuleForks, socket.socket],
) -> None:
    server, _ = ends
    assert not server.can_fork(WORDS, {"PATH": "/bin"})


def test_a_server_that_has_ended_forks_nothing(ends: tuple[ModuleForks, socket.socket]) -> None:
    server, theirs = ends
    theirs.close()
    assert server.start(process(), (-1, -1, -1)) is None
    assert not server.can_fork(WORDS, ENVIRONMENT)
    assert server.start(process(), (-1, -1, -1)) is None


def test_an_answer_is_a_process(ends: tuple[ModuleForks, socket.socket]) -> None:
    server, theirs = ends
    answering = threading.Thread(target=lambda: (theirs.recv(MOST_BYTES), theirs.send(b"4711")))
    answering.start()
    assert server.start(process(), (-1, -1, -1)) == 4711
    answering.join()


def test_a_server_that_is_stopped_is_not_waited_for() -> None:
    stopped = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(50)"])
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    forks = ModuleForks(ours, ENVIRONMENT, stopped.pid)
    try:
        stopped.send_signal(signal.SIGSTOP)
        assert forks.start(process(), (-1, -1, -1)) is None
    finally:
        stopped.kill()
        stopped.wait()
        theirs.close()


def test_what_is_too_large_for_a_message_is_not_sent(
    ends: tuple[ModuleForks, socket.socket],
) -> None:
    server, theirs = ends
    assert server.start(process(ASTRAFLOW_TOKEN="x" * MOST_BYTES), (-1, -1, -1)) is None
    theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        theirs.recv(1)


def test_a_process_that_was_started_forks_no_server() -> None:
    program = (
        "from astraflow_runtime.forking.client import ModuleForks; print(ModuleForks.forked())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=True
    )
    assert done.stdout == "None\n"


def test_forks_can_be_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CHOICE, raising=False)
    assert is_possible()
    monkeypatch.setenv(CHOICE, OWN)
    assert not is_possible()
    monkeypatch.setenv(CHOICE, "none")
    with pytest.raises(UserError, match="ASTRAFLOW_IMPORTS is 'none'; expected own"):
        is_possible()


MAY_FORK = """
import sys, threading
from astraflow_runtime.forking import server

server.DEVICES = (sys.argv[1],)
print(server.may_fork())
with open(sys.argv[1]):
    print(server.may_fork())
threading.Thread(target=threading.Event().wait, daemon=True).start()
print(server.may_fork())
"""


def test_a_process_with_a_device_or_a_thread_forks_nothing(tmp_path: Path) -> None:
    device = tmp_path / "nvidia0"
    device.touch()
    done = subprocess.run(
        [sys.executable, "-c", MAY_FORK, str(device)],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    assert done.stdout == "True\nFalse\nFalse\n"


@pytest.mark.slow
def test_the_first_process_waits_for_no_imports_of_others(tmp_path: Path) -> None:
    gate, config = tmp_path / "gate", tmp_path / "config.toml"
    os.mkfifo(gate)
    (tmp_path / "gated.py").write_text(f"open({str(gate)!r}).read()\n")
    (tmp_path / "collects.py").write_text("import gc, sys\nsys.exit(0 if gc.isenabled() else 3)\n")
    config.write_text(TABLE_RUN)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    words = [sys.executable, "-m", "collects"]
    asked = ModuleProcess(words, str(tmp_path), environment, True, True)
    with (tmp_path / "log").open("wb") as log:
        forks = ModuleForks.started(config, ["json"], ["gated"], environment, log)
    try:
        for _ in range(2):
            pid = forks.start(asked, (-1, -1, -1))
            assert pid is not None, (tmp_path / "log").read_text()
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            if gate.exists():
                gate.open("w").close()  # waits until it is read
                gate.unlink()
    finally:
        forks.close()
