"""Faults of processes and of memory."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from astraflow_core.errors import WeightsError
from astraflow_core.types import ExportedTensor
from astraflow_weights.fetch import download

TOKEN = "a-token-of-the-run"
BLOCK = 2 << 20


@contextmanager
def process(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    running = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield running
    finally:
        running.kill()
        running.communicate(timeout=10)


def files(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.rglob("*") if p.is_file() and p.name != "lock")


def test_a_bit_that_flips_in_the_publishers_memory_is_never_loaded(
    rig: Any, announce: Any, model: Any, tmp_path: Path
) -> None:
    publisher = rig.publisher()
    told = announce(publisher.publish(1, model()), *publisher.endpoints)
    with publisher._store.reading(1, "") as held:
        held.snapshot.data[2 * BLOCK + 11] ^= 16
    with pytest.raises(
        WeightsError,
        match=rf"version 1 of policy 'solver'.*block 2 arrived corrupted {download.BAD_ATTEMPTS} times",
    ):
        rig.receiver().fetch(told, 20)
    assert files(tmp_path) == []


def test_announcements_out_of_order_and_twice_give_the_versions_they_name(
    rig: Any, announce: Any, read: Any, raw: Any, model: Any
) -> None:
    publisher, receiver = rig.publisher(), rig.receiver()
    published = {version: model(version) for version in (1, 2, 3)}
    told = {}
    for version, tensors in published.items():
        told[version] = announce(publisher.publish(version, tensors), *publisher.endpoints)
    for version in (3, 1, 3, 2, 2, 1):
        source = receiver.fetch(told[version], 20)
        assert source.version == version
        assert read(source.path) == raw(published[version])


def test_a_publisher_killed_while_it_publishes_has_published_nothing(
    rig: Any, announce: Any, model: Any, tmp_path: Path, shared_files: Any
) -> None:
    code = """
import sys, numpy as np
from astraflow_weights.publish.publisher import HttpPublisher
from astraflow_testing.conformance._transports.tensors import model as example
from astraflow_testing.conformance._transports.transport_rig import TransportRig, announcement
from astraflow_testing.conformance.transport import TcpLink
from astraflow_core.types import ExportedTensor
p = HttpPublisher("solver", "a-token-of-the-run", host="127.0.0.1", port=0, advertise=None)
p.publish(1, [ExportedTensor("w", "U8", (9,), np.ones(9, np.uint8))])
def export():
    print(p.endpoints[0], flush=True)
    sys.stdin.readline()
    print("asked", flush=True)
    sys.stdin.readline()
    yield
p.publish(2, export())
"""
    shm_before = shared_files()
    manifest = rig.publisher().publish(2, [ExportedTensor("w", "U8", (9,), bytes([2] * 9))])
    with process(code) as publisher:
        assert publisher.stdin is not None
        assert publisher.stdout is not None
        url = publisher.stdout.readline().strip()
        answer = httpx.get(
            f"{url}/v1/weights/solver/2/manifest", headers={"Authorization": f"Bearer {TOKEN}"}
        )
        assert (answer.status_code, answer.json()["error"]) == (
            404,
            "version 2 is not available; available versions: 1",
        )
        publisher.stdin.write("\n")
        publisher.stdin.flush()
        assert publisher.stdout.readline() == "asked\n"
        publisher.send_signal(signal.SIGKILL)
        publisher.wait(10)
        with pytest.raises(
            WeightsError, match=r"version 2 of policy 'solver' could not be fetched"
        ):
            rig.receiver().fetch(announce(manifest, url), 20)
    assert files(tmp_path) == []
    assert shared_files() - shm_before == set()


def test_a_file_that_may_not_grow_is_an_error_and_leaves_nothing(
    rig: Any, announce: Any, model: Any, tmp_path: Path
) -> None:
    code = """
import resource, signal, sys
from pathlib import Path
from astraflow_core.types import Announcement
from astraflow_core.errors import WeightsError
from astraflow_weights.fetch.receiver import HttpReceiver
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
receiver = HttpReceiver(Path(sys.argv[1]), "a-token-of-the-run", streams=2)
try:
    receiver.fetch(Announcement("solver", 1, "http", (sys.argv[2],), sys.argv[3], int(sys.argv[4])), 20)
except WeightsError as error:
    print(error, flush=True)
sys.stdin.read()
"""
    publisher = rig.publisher()
    manifest = publisher.publish(1, model())
    folder = tmp_path / "small"
    with process(
        code, str(folder), publisher.endpoints[0], manifest.digest, str(manifest.size)
    ) as receiver:
        assert receiver.stdout is not None
        told = receiver.stdout.readline()
        assert "version 1 of policy 'solver' cannot be stored in" in told
        assert "File too large" in told
        assert files(folder) == []


@pytest.mark.slow
def test_one_stalled_reader_of_eight_costs_the_others_nothing(
    rig: Any, announce: Any, read: Any, raw: Any, model: Any
) -> None:
    publisher = rig.publisher()
    published = {version: model(version, blocks=8) for version in (1, 2)}
    told = announce(publisher.publish(1, published[1]), *publisher.endpoints)
    url = f"{publisher.endpoints[0]}/v1/weights/solver/1/data"
    auth = {"Authorization": f"Bearer {TOKEN}", "AstraFlow-Reader": "stalled"}
    with httpx.Client() as client, client.stream("GET", url, headers=auth) as stalled:
        pieces = stalled.iter_raw(1000)
        start = next(pieces)
        receivers = [rig.receiver(streams=2) for _ in range(7)]
        with ThreadPoolExecutor(7) as pool:
            sources = list(pool.map(lambda each: each.fetch(told, 60), receivers))
        assert all(read(source.path) == raw(published[1]) for source in sources)
        second = announce(publisher.publish(2, published[2]), *publisher.endpoints)
        publisher.retain(frozenset())
        assert read(receivers[0].fetch(second, 60).path) == raw(published[2])
        # The stalled one continues, and what it gets is version 1 to the last byte.
        assert start + b"".join(pieces) == sources[0].path.read_bytes()
