"""One network namespace is one host: a run goes on over a lost link, a late host, and a host that can only dial a TCP forwarder."""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
from bench.support.processes import end_of
from bench.support.slow_link import enter

from astraflow_testing.runs import TABLE_RUN
from astraflow_wire.http.client import SyncClient

DATAFLOW, TRAINER, RAAS, HUB = "10.97.0.1", "10.97.0.2", "10.97.0.3", "10.97.0.254"
PORT, PUBLISHER_PORT = 19100, 19101
DEADLINE_S = 120.0
T = TypeVar("T")
TOKEN = "secret-of-the-run"


def sh(command: str, pid: int | None = None) -> None:
    """A command, in the network namespace of ``pid``."""
    within = [] if pid is None else ["nsenter", f"--net=/proc/{pid}/ns/net"]
    subprocess.run([*within, *command.split()], check=True, timeout=30, capture_output=True)


def possible() -> bool:
    """Whether this process may make namespaces that are connected."""
    command = ["unshare", "--net", "ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1"]
    try:
        return subprocess.run(command, capture_output=True, timeout=30).returncode == 0
    except OSError:
        return False


pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not possible(), reason="needs root: network namespaces and veth devices"),
]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def namespace(stack: ExitStack) -> int:
    """A process that keeps a new network namespace."""
    process = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "ip link set lo up && echo up && exec sleep 600"],
        stdout=subprocess.PIPE,
    )
    stack.callback(end_of, process)
    assert process.stdout is not None and process.stdout.readline() == b"up\n"
    return process.pid


class Hosts:
    """Hosts around a bridge, whose namespace ``hub`` has an address too."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack, self.hub, self._count = stack, namespace(stack), 0
        sh("ip link add br0 type bridge", self.hub)
        sh(f"ip address add {HUB}/24 dev br0", self.hub)
        sh("ip link set br0 up", self.hub)

    def add(self, address: str) -> int:
        """A host with this address."""
        host = namespace(self._stack)
        self._count += 1
        name = f"port{self._count}"
        sh(f"ip link add {name} type veth peer name eth0 netns {host}", self.hub)
        sh(f"ip link set {name} master br0 up", self.hub)
        sh(f"ip address add {address}/24 dev eth0", host)
        sh("ip link set eth0 up", host)
        return host

    def walled(self) -> int:
        """A host without a link: a forwarder alone takes what it dials to the dataflow and the publisher."""
        host = namespace(self._stack)
        for address, port in ((DATAFLOW, PORT), (TRAINER, PUBLISHER_PORT)):
            sh(f"ip address add {address}/32 dev lo", host)
            listener = _from(host, lambda a=(address, port): socket.create_server(a))
            self._stack.callback(listener.close)
            worker = threading.Thread(
                target=_forward, args=(listener, self.hub, (address, port)), daemon=True
            )
            worker.start()
        return host


def _from(pid: int, act: Callable[[], T]) -> T:
    """What ``act`` gives in the namespace of ``pid``; a thread of its own, since it stays there."""
    made: list[T] = []

    def work() -> None:
        enter(f"/proc/{pid}/ns/net")
        made.append(act())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)
    return made[0]


def _forward(listener: socket.socket, hub: int, address: tuple[str, int]) -> None:
    enter(f"/proc/{hub}/ns/net")
    with suppress(OSError):  # closed by the end of the test
        while True:
            inside, _ = listener.accept()
            outside = socket.create_connection(address, 10)
            threading.Thread(target=_pump, args=(inside, outside), daemon=True).start()


def _pump(inside: socket.socket, outside: socket.socket) -> None:
    with inside, outside, selectors.DefaultSelector() as ready, suppress(OSError):
        ready.register(inside, selectors.EVENT_READ, outside)
        ready.register(outside, selectors.EVENT_READ, inside)
        while True:
            for key, _ in ready.select():
                source: socket.socket = key.fileobj  # type: ignore[assignment]
                if not (data := source.recv(65536)):
                    return
                key.data.sendall(data)


def test_a_run_over_hosts_that_are_lost_late_or_can_only_dial_out(
    tmp_path: Path, stack: ExitStack
) -> None:
    hosts = Hosts(stack)
    config = tmp_path / "run.toml"
    transport = f'{{ use = "http", host = "{TRAINER}", port = {PUBLISHER_PORT} }}'
    text = TABLE_RUN.replace('{ use = "http" }', transport).replace("steps = 8", "steps = 400")
    config.write_text(text + f'\n[dataflow]\nhost = "{DATAFLOW}"\nport = {PORT}\n')
    (tmp_path / "token").write_text(TOKEN)
    logs: list[Path] = []

    def service(host: int, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        logs.append(tmp_path / f"{name}.log")
        log = stack.enter_context(logs[-1].open("wb"))
        role, *options = arguments
        command = [sys.executable, "-m", "astraflow_runtime", role, str(config), *options]
        command += ["--directory", str(tmp_path / name), "--token-file", str(tmp_path / "token")]
        if role != "dataflow":
            command += ["--dataflow", f"http://{DATAFLOW}:{PORT}"]
        process = subprocess.Popen(
            ["nsenter", f"--net=/proc/{host}/ns/net", *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "ASTRAFLOW_CACHE": str(tmp_path / "cache")},
        )
        stack.callback(end_of, process)
        return process

    def steps() -> int:
        file = tmp_path / "dataflow" / "metrics.jsonl"
        return file.read_text().count('"step"') if file.exists() else 0

    def until(condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + DEADLINE_S
        while not condition():
            if time.monotonic() > end or dataflow.poll() not in (None, 0):
                said = "\n".join(f"{log.name}: {log.read_text()[-800:]}" for log in logs)
                raise AssertionError(f"never: {what}; {steps()} steps\n{said}")
            time.sleep(0.05)

    def more(count: int, what: str) -> None:
        wanted = steps() + count
        until(lambda: steps() >= wanted, what)

    def ask() -> dict[str, Any]:
        with closing(SyncClient(f"http://{DATAFLOW}:{PORT}", TOKEN)) as client:
            found: dict[str, Any] = client.get_json("/v1/status", deadline_s=30)
            return found

    def state_of(raas: str) -> str:
        records = _from(first, ask)["raas"]
        return next((str(r["state"]) for r in records if r["name"] == raas), "")

    first = hosts.add(DATAFLOW)
    dataflow = service(first, "dataflow", "dataflow")
    service(hosts.add(TRAINER), "trainer", "trainer", "--policy", "solver")
    open_host = hosts.add(RAAS)
    service(open_host, "raas-open", "raas", "--name", "open")
    more(2, "steps with the RaaS on an ordinary host")

    walled = service(hosts.walled(), "raas-walled", "raas", "--name", "walled")
    until(lambda: "registered" in (tmp_path / "raas-walled.log").read_text(), "the late RaaS came")
    sh("ip link set eth0 down", open_host)
    until(lambda: state_of("open") in ("suspect", "gone"), "the loss of the host is noticed")
    more(6, "steps with the RaaS that can only dial the forwarder")
    sh("ip link set eth0 up", open_host)
    until(lambda: state_of("open") == "alive", "the lost host is back")
    walled.terminate()
    assert walled.wait(DEADLINE_S) == 0
    more(3, "steps with the RaaS whose host was lost, alone")
    dataflow.terminate()
    assert dataflow.wait(DEADLINE_S) == 0
    status = json.loads((tmp_path / "dataflow" / "status.json").read_text())
    tasks, rows = status["tasks"], status["policies"]["solver"]["rows"]
    ended = ("accepted", "rejected", "failed", "set_aside", "running", "queued")
    assert tasks["admitted"] == sum(tasks[state] for state in ended) and tasks["lost"] == 0, tasks
    assert rows["accepted"] == sum(rows[state] for state in rows if state != "accepted"), rows
    assert rows["trained"] > 0 and rows["lost"] == 0, rows
