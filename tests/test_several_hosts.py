"""One network namespace is one host: an encrypted run over shaped links, NAT, a proxy, a lost host, late ones, and clocks apart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from bench.support.processes import end_of
from network_hosts import HUB, NetworkHost, NetworkHosts, impossible

from astraflow_testing.runs import TABLE_RUN
from astraflow_testing.tls_files import LOOPBACK, write_tls
from astraflow_wire.http.access import Role, process_token
from astraflow_wire.http.client import SyncClient

HEAD, SECOND, OPEN = "10.97.0.1", "10.97.0.2", "10.97.0.3"
PORT, PUBLISHER_PORT, RANKS_PORT = 19100, 19101, 19102
ADDRESS = f"https://{HEAD}:{PORT}"
DEADLINE_S = 120.0
TOKEN = "secret-of-the-run"
AHEAD_S, BEHIND_S = 420, -540
TABLES = f"""
[dataflow]
host = "{HEAD}"
port = {PORT}

[tls]
authority = "tls/authority.pem"
certificate = "tls/own.pem"
private_key = "tls/own.key"
client_certificates = true
"""
PUBLISHER = f'{{ use = "http", host = "{HEAD}", port = {PUBLISHER_PORT} }}'
CHANGES = {
    '{ use = "http" }': PUBLISHER,
    "steps = 8": "steps = 100000",
    'TableTrainer" }': 'TableTrainer", ranks = 2, step_s = 0.05 }',
}
pytestmark = [
    pytest.mark.backend,  # programs of Debian
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(impossible()), reason=impossible()),
]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


class HostsRun:
    """A run whose processes are started one by one, each with a token of its role and a folder of its own."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self.tls = write_tls(
            folder / "tls", hosts=(*LOOPBACK, HEAD, SECOND), client_certificates=True
        )
        self.head: NetworkHost
        self.dataflow: subprocess.Popen[bytes]
        text = TABLE_RUN
        for before, after in CHANGES.items():
            assert before in text
            text = text.replace(before, after)
        (folder / "run.toml").write_text(text + TABLES)

    def start(
        self, host: NetworkHost, role: str, name: str, *options: str, **variables: str
    ) -> subprocess.Popen[bytes]:
        """``astraflow ROLE`` on a host."""
        log = self._stack.enter_context((self.folder / f"{name}.log").open("wb"))
        command = [sys.executable, "-m", "astraflow_runtime", role, str(self.folder / "run.toml")]
        command += [*options, "--directory", str(self.folder / name)]
        if role != "dataflow":
            command += ["--dataflow", ADDRESS]
        own: dict[str, Role] = {"raas": "raas", "trainer": "trainer"}
        named = "solver" if role == "trainer" else name
        token = process_token(TOKEN, own[role], named) if role in own else TOKEN
        shared = {"ASTRAFLOW_CACHE": str(self.folder / "cache"), "ASTRAFLOW_TOKEN": token}
        process = subprocess.Popen(
            host.within(command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **shared, **host.variables, **variables},
        )
        self._stack.callback(end_of, process)
        return process

    def raas(self, host: NetworkHost, name: str, **variables: str) -> subprocess.Popen[bytes]:
        return self.start(host, "raas", name, "--name", name, **variables)

    def rank(self, host: NetworkHost, rank: int) -> None:
        """A rank of the trainer, with what torchrun gives it."""
        self.start(
            host, "trainer", f"rank-{rank}", "--policy", "solver", RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK="0",
            LOCAL_WORLD_SIZE="1", MASTER_ADDR=HEAD, MASTER_PORT=str(RANKS_PORT), TORCHELASTIC_RUN_ID="hosts",
        )  # fmt: skip

    def steps(self) -> list[dict[str, Any]]:
        file = self.folder / "dataflow" / "metrics.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [row for line in lines if "step" in (row := json.loads(line))]

    def until(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + DEADLINE_S
        while not condition():
            if time.monotonic() > end or self.dataflow.poll() not in (None, 0):
                said = "\n".join(
                    f"{log.name}: {log.read_text()[-800:]}" for log in self.folder.glob("*.log")
                )
                raise AssertionError(f"never: {what}; {len(self.steps())} steps\n{said}")
            time.sleep(0.05)

    def more(self, count: int, what: str) -> None:
        wanted = len(self.steps()) + count
        self.until(lambda: len(self.steps()) >= wanted, what)

    def raas_states(self) -> dict[str, dict[str, Any]]:
        def ask() -> dict[str, Any]:
            with closing(SyncClient(ADDRESS, TOKEN, tls=self.tls)) as client:
                found: dict[str, Any] = client.get_json("/v1/status", deadline_s=30)
                return found

        return {str(record["name"]): record for record in self.head.call(ask)["raas"]}

    def state_of(self, raas: str) -> str:
        return str(self.raas_states().get(raas, {}).get("state", ""))

    def said(self, name: str, words: str) -> bool:
        return words in (self.folder / f"{name}.log").read_text()


def of_another_version(folder: Path) -> str:
    """A path of imports on which this package has another version."""
    other = folder / "astraflow_core-9.9.9.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: astraflow-core\nVersion: 9.9.9\n")
    return str(folder)


def wall_clock(host: NetworkHost) -> float:
    """The time of day on a host."""
    command = host.within([sys.executable, "-c", "import time; print(time.time())"])
    return float(subprocess.check_output(command, env={**os.environ, **host.variables}, timeout=30))


def reward(steps: list[dict[str, Any]]) -> float:
    """The mean reward of some steps."""
    return sum(float(step["reward"]) for step in steps) / max(1, len(steps))


def check_accounts(status: dict[str, Any]) -> None:
    """Each task and each row has ended in one way."""
    assert status["invariants_ok"], status
    tasks, rows = status["tasks"], status["policies"]["solver"]["rows"]
    ended = ("accepted", "rejected", "failed", "set_aside", "running", "queued")
    assert tasks["admitted"] == sum(tasks[state] for state in ended) and tasks["lost"] == 0, tasks
    assert rows["accepted"] == sum(rows[state] for state in rows if state != "accepted"), rows
    assert rows["trained"] > 0 and rows["lost"] == 0, rows


def test_a_run_over_hosts_behind_nat_and_a_proxy_that_are_lost_late_or_of_another_time(
    tmp_path: Path, stack: ExitStack
) -> None:
    links = tmp_path / "links"
    links.mkdir()
    hosts, run = NetworkHosts(stack, links), HostsRun(tmp_path, stack)
    run.head, second = hosts.add(HEAD), hosts.add(SECOND, megabits_per_s=200)
    run.dataflow = run.start(run.head, "dataflow", "dataflow")
    run.rank(run.head, 0)
    run.rank(second, 1)
    open_host = hosts.add(OPEN, megabits_per_s=50)
    run.raas(open_host, "open")
    inner = hosts.behind_nat(megabytes_per_s=10, round_trip_ms=40, clock_s=AHEAD_S)
    assert wall_clock(inner) - time.time() > AHEAD_S - 60
    run.raas(inner, "inner")
    run.until(lambda: run.state_of("inner") == "alive", "the RaaS behind NAT came")
    run.more(3, "steps over shaped links")
    assert run.head.peers(PORT) <= {HEAD, OPEN, HUB}, "who is behind NAT is not seen"
    assert HUB in run.head.peers(PORT)
    assert SECOND in run.head.peers(), "rank 1"

    walled_host = hosts.behind_proxy([(HEAD, PORT), (HEAD, PUBLISHER_PORT)], clock_s=BEHIND_S)
    assert wall_clock(walled_host) - time.time() < BEHIND_S + 60
    walled = run.raas(walled_host, "walled")
    other = run.raas(open_host, "other", PYTHONPATH=of_another_version(tmp_path / "other-version"))
    run.until(lambda: run.state_of("walled") == "alive", "the late RaaS came")
    run.until(lambda: other.poll() is not None, "the RaaS of another version ends")
    assert run.said("other", "other has astraflow-core 9.9.9, and the dataflow has ")
    assert "other" not in run.raas_states()

    open_host.sh("ip link set eth0 down")
    run.until(
        lambda: run.state_of("open") in ("suspect", "gone"), "the loss of the host is noticed"
    )
    run.more(6, "steps without the lost host")
    open_host.sh("ip link set eth0 up")
    run.until(lambda: run.state_of("open") == "alive", "the lost host is back")
    walled.terminate()
    assert walled.wait(DEADLINE_S) == 0
    run.until(lambda: run.state_of("walled") == "left", "the RaaS that leaves is not waited for")
    run.more(3, "steps with those that are left")
    before, after = reward(run.steps()[:2]), reward(run.steps()[-20:])
    assert after > 0.25 > before, (
        "the table learns the best answer to all prompts, which earns a third"
    )
    run.dataflow.terminate()
    assert run.dataflow.wait(DEADLINE_S) == 0
    check_accounts(json.loads((tmp_path / "dataflow" / "status.json").read_text()))
