"""A RaaS that joins from the far end of a long, narrow link measures it and chooses by what it found."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from bench.support.processes import TOKEN, end_of, started
from bench.support.slow_link import ADDRESSES, enter, possible
from bench.support.weight_peer import POLICY, Peer

from astraflow_core.types import Announcement
from astraflow_testing.runs import TABLE_RUN
from astraflow_weights.fetch.receiver import HttpReceiver
from astraflow_wire.http.client import SyncClient
from astraflow_wire.messages import (
    AnnouncementMessage,
    RegisterTrainer,
    TrainerRegistered,
    VersionAnnounced,
)

MEGABYTES_PER_S, ROUND_TRIP_MS, MEGABYTES = 20.0, 300.0, 40
DEADLINE_S = 100.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def within(namespace: str, act: Any, *arguments: Any) -> Any:
    """Call it from a network namespace."""
    with ThreadPoolExecutor(1, initializer=enter, initargs=(namespace,)) as there:
        return there.submit(act, *arguments).result(DEADLINE_S)


def announce(url: str, told: dict[str, Any]) -> None:
    with closing(SyncClient(url, f"~{TOKEN}")) as client:
        hello = RegisterTrainer(policy=told["policy"], pid=1, host="h")
        number = client.post(
            "/v1/trainers/register", hello, TrainerRegistered, deadline_s=DEADLINE_S
        ).incarnation
        version = AnnouncementMessage(**told, incarnation=number)
        client.post("/v1/versions", version, VersionAnnounced, deadline_s=DEADLINE_S)


def fetch(told: dict[str, Any], folder: Path) -> Any:
    announcement = Announcement(**{**told, "endpoints": tuple(told["endpoints"])})
    with closing(HttpReceiver(folder, TOKEN, streams=4)) as receiver:
        return receiver.fetch(announcement, DEADLINE_S).link


@pytest.mark.skipif(not possible(), reason="needs root: network namespaces and TUN devices")
def test_a_far_raas_measures_its_link_and_chooses_by_it(tmp_path: Path, stack: ExitStack) -> None:
    shaped = (str(MEGABYTES_PER_S), str(ROUND_TRIP_MS))
    near, far = stack.enter_context(started("bench.support.slow_link", *shaped)).url.split()
    config = tmp_path / "run.toml"
    config.write_text(TABLE_RUN.replace('{ use = "http" }', '{ use = "auto" }'))
    (tmp_path / "token").write_text(f"~{TOKEN}")  # with the secret that the peers share

    def service(namespace: str, role: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "astraflow_runtime", role, str(config), *arguments]
        command += ["--directory", str(tmp_path / role), "--token-file", str(tmp_path / "token")]
        command += ["--set", f"dataflow.host='{ADDRESSES[0]}'"]
        log = stack.enter_context((tmp_path / f"{role}.log").open("wb"))
        process = subprocess.Popen(
            ["nsenter", f"--net={namespace}", *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        stack.callback(end_of, process)
        return process

    def said(process: subprocess.Popen[bytes], file: Path, pattern: str) -> str:
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            text = file.read_text() if file.exists() else ""
            if match := re.search(pattern, text):
                return match[0]
            assert process.poll() is None, text
            time.sleep(0.05)
        raise TimeoutError(f"{file} does not say {pattern}")

    dataflow = service(near, "dataflow")
    url = json.loads(said(dataflow, tmp_path / "dataflow" / "dataflow.json", r"(?s)\{.*\}"))["url"]
    note = said(dataflow, tmp_path / "dataflow.log", "'auto' chose .*")
    assert note.startswith("'auto' chose 'delta'")
    assert "no peer to measure; no run before this one has measured it" in note

    publisher = Peer(
        half="publisher",
        table={"use": "delta", "host": ADDRESSES[0]},
        directory=str(tmp_path / "publisher"),
        megabytes=MEGABYTES,
        density=0.01,
        namespace=near,
    )
    stack.callback(publisher.close)
    told = publisher.ask(publish=1)["announcement"]
    assert told["policy"] == POLICY
    within(near, announce, url, told)

    raas = service(far, "raas", "--name", "far", "--dataflow", url)
    note = said(raas, tmp_path / "raas.log", "'auto' chose .*")
    found = re.search(
        r"links of at least (\S+) MB/s and (\d+) ms \(measured now\): 40 MB take", note
    )
    assert note.startswith("'auto' chose 'delta'") and found is not None, note
    # What one half of the time brings is at most what the link carries in all of it.
    assert 0 < float(found[1]) <= 2.5 * MEGABYTES_PER_S and float(found[2]) >= ROUND_TRIP_MS

    link = within(far, fetch, told, tmp_path / "fetched")
    assert 0 < link.mb_s <= 1.2 * MEGABYTES_PER_S and link.round_trip_s >= ROUND_TRIP_MS / 1000
