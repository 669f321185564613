"""The effects of a bad link, a dying publisher and a client without a token; a wrong version is never returned."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from astraflow_core.errors import UserError, WeightsError
from astraflow_core.types import ExportedTensor
from astraflow_plugin_http.config import HttpConfig
from astraflow_weights.fetch import client, download
from astraflow_weights.publish import server, store
from astraflow_wire.http.connection_limits import Limits

TOKEN = "a-token-of-the-run"
BLOCK = 2 << 20


def files(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.rglob("*") if p.is_file() and p.name != "lock")


@pytest.mark.slow
def test_a_flipped_byte_is_repaired_by_fetching_that_block_alone(
    rig: Any, announce: Any, read: Any, raw: Any, model: Any
) -> None:
    publisher, receiver = rig.publisher(), rig.receiver(streams=1)
    proxy = rig.proxy(publisher, corrupt={BLOCK * 9 + 77: 1})
    tensors = model(blocks=32)
    manifest = publisher.publish(1, tensors)
    source = receiver.fetch(announce(manifest, proxy.url), 30)
    assert read(source.path) == raw(tensors)
    assert proxy.ranges[-1] == (BLOCK * 9, BLOCK * 10)
    assert source.bytes_received == manifest.size + BLOCK


def test_a_block_that_stays_corrupted_is_refused(
    rig: Any, announce: Any, model: Any, tmp_path: Path
) -> None:
    publisher, receiver = rig.publisher(), rig.receiver()
    proxy = rig.proxy(publisher, corrupt={BLOCK + 5: 1_000})
    with pytest.raises(
        WeightsError, match=r"version 1 of policy 'solver'.*block 1 arrived corrupted"
    ):
        receiver.fetch(announce(publisher.publish(1, model()), proxy.url), 30)
    touched = [r for r in proxy.ranges if r[0] <= BLOCK + 5 < r[1]]
    assert len(touched) == download.BAD_ATTEMPTS
    assert files(tmp_path) == []


def test_dropped_connections_are_resumed_where_they_broke(
    rig: Any, announce: Any, read: Any, raw: Any, model: Any
) -> None:
    publisher, receiver = rig.publisher(), rig.receiver(streams=1)
    proxy = rig.proxy(publisher, cut_after=[BLOCK * 3 + 1000, 10, 0])
    tensors = model(blocks=32)
    manifest = publisher.publish(1, tensors)
    source = receiver.fetch(announce(manifest, proxy.url), 30)
    assert read(source.path) == raw(tensors)
    assert source.bytes_received - manifest.size < BLOCK


def test_one_break_of_many_streams_is_one_failure(
    rig: Any, announce: Any, read: Any, raw: Any, model: Any
) -> None:
    publisher, receiver = rig.publisher(), rig.receiver(streams=12)
    proxy = rig.proxy(publisher, cut_after=[1000] * 12)
    tensors = model(blocks=24)
    manifest = publisher.publish(1, tensors)
    source = receiver.fetch(announce(manifest, proxy.url), 30)
    assert read(source.path) == raw(tensors)
    assert source.bytes_received == manifest.size, "a block continues where it broke"


def test_another_endpoint_continues_where_the_first_failed(
    rig: Any, announce: Any, read: Any, raw: Any, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PAUSE_S", 0.001)
    publisher, receiver = rig.publisher(), rig.receiver(streams=1)
    tensors = model(blocks=8)
    bad = rig.proxy(publisher, corrupt={BLOCK * 2: 1_000})
    good = rig.proxy(publisher)
    announcement = announce(publisher.publish(1, tensors), "http://127.0.0.1:9", bad.url, good.url)
    source = receiver.fetch(announcement, 30)
    assert read(source.path) == raw(tensors)
    fetched_from_good = sum(end - start for start, end in good.ranges)
    assert fetched_from_good < sum(end - start for start, end in bad.ranges) + 2 * BLOCK
    assert (0, BLOCK) not in good.ranges


@pytest.mark.skipif(sys.platform != "linux", reason="files are written over with a lease of Linux")
def test_blocks_that_land_in_a_mapped_file_are_repaired_and_resumed_as_well(
    rig: Any, announce: Any, read: Any, raw: Any, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PAUSE_S", 0.001)
    publisher, receiver = rig.publisher(), rig.receiver(streams=1)
    faults = {3: {"corrupt": {BLOCK * 9 + 77: 1}}, 4: {"cut_after": [BLOCK // 2 + 1000, 10, 0]}}
    for version in range(1, 5):
        proxy = rig.proxy(publisher, **faults.get(version, {}))
        tensors = model(version, blocks=12)
        manifest = publisher.publish(version, tensors)
        source = receiver.fetch(announce(manifest, proxy.url), 30)
        assert read(source.path) == raw(tensors)
        assert source.bytes_received - manifest.size <= (BLOCK if version > 2 else 0)
        assert (str(source.path) in mappings()) == (version > 1)
        receiver.release(source)
        publisher.retain(frozenset())
    receiver.close()
    assert "received-" not in mappings()


@pytest.mark.skipif(sys.platform != "linux", reason="files are written over with a lease of Linux")
def test_a_mapped_file_without_room_is_an_error(
    rig: Any, announce: Any, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher, receiver = rig.publisher(), rig.receiver(streams=1)
    for version in (1, 2):
        told = announce(publisher.publish(version, model(version)), *publisher.endpoints)
        receiver.release(receiver.fetch(told, 30))
    truncate = os.truncate
    # Pages beyond the end of a file fail like those for which a disk has no space.
    monkeypatch.setattr(os, "truncate", lambda file, size: truncate(file, 0))
    told = announce(publisher.publish(3, model(3)), *publisher.endpoints)
    with pytest.raises(WeightsError, match="writing a block to disk failed"):
        receiver.fetch(told, 30)
    assert files(tmp_path) == [] and "received-" not in mappings()


def mappings() -> str:
    """The files that this process has mapped."""
    return Path("/proc/self/maps").read_text()


def test_other_weights_under_the_announced_number_are_refused(
    rig: Any, announce: Any, model: Any, tmp_path: Path
) -> None:
    publisher, stranger, receiver = rig.publisher(), rig.publisher(), rig.receiver()
    manifest = publisher.publish(1, model(1))
    stranger.publish(1, model(2))
    with pytest.raises(WeightsError, match=f"expected {manifest.digest} as announced"):
        receiver.fetch(announce(manifest, *stranger.endpoints), 30)
    assert files(tmp_path) == []


@pytest.mark.parametrize("stage", ["manifest", "data"])
def test_a_publisher_that_falls_silent_meets_the_deadline(
    rig: Any, announce: Any, model: Any, tmp_path: Path, stage: str
) -> None:
    publisher, receiver = rig.publisher(), rig.receiver()
    manifest = publisher.publish(1, model())
    if stage == "data":
        proxy = rig.proxy(publisher)
        proxy.gate.clear()
        url, silent = proxy.url, None
    else:
        silent = socket.create_server(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
    began = time.monotonic()
    with pytest.raises(WeightsError, match="the deadline passed"):
        receiver.fetch(announce(manifest, url), 1.0)
    assert 0.9 < time.monotonic() - began < 20
    assert files(tmp_path) == []
    if silent is not None:
        silent.close()


def test_a_trickle_meets_the_deadline(rig: Any, announce: Any, model: Any) -> None:
    publisher, receiver = rig.publisher(), rig.receiver()
    manifest = publisher.publish(1, model())
    listener = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def trickle() -> None:
        connection, _ = listener.accept()
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while not over.wait(0.05):
            try:
                connection.sendall(b"x")
            except OSError:
                break
        connection.close()

    thread = threading.Thread(target=trickle)
    thread.start()
    began = time.monotonic()
    with pytest.raises(WeightsError, match="the deadline passed"):
        receiver.fetch(announce(manifest, f"http://127.0.0.1:{listener.getsockname()[1]}"), 1.0)
    assert time.monotonic() - began < 20
    over.set()
    thread.join(10)
    listener.close()


def test_closing_a_receiver_ends_its_fetches(
    rig: Any, announce: Any, model: Any, tmp_path: Path
) -> None:
    publisher, receiver = rig.publisher(), rig.receiver()
    proxy = rig.proxy(publisher)
    proxy.gate.clear()
    announcement = announce(publisher.publish(1, model()), proxy.url)
    outcome: list[str] = []

    def fetch() -> None:
        try:
            receiver.fetch(announcement, 30)
        except WeightsError as error:
            outcome.append(str(error))

    thread = threading.Thread(target=fetch)
    thread.start()
    assert proxy.started.wait(10)
    receiver.close()
    thread.join(10)
    assert "the receiver was closed" in outcome[0]
    with pytest.raises(WeightsError, match="the receiver was closed"):
        receiver.fetch(announcement, 30)
    assert not list(tmp_path.rglob("received-*"))


def test_only_the_bearer_of_the_token_is_served(rig: Any, announce: Any, model: Any) -> None:
    publisher = rig.publisher()
    manifest = publisher.publish(1, model())
    with pytest.raises(WeightsError, match="401: missing or wrong bearer token"):
        rig.receiver(token="another").fetch(announce(manifest, *publisher.endpoints), 20)
    url = f"{publisher.endpoints[0]}/v1/weights/solver/1"
    for method, path in (("GET", "manifest"), ("GET", "data"), ("DELETE", "readers/x")):
        assert httpx.request(method, f"{url}/{path}").status_code == 401


def test_replies_to_invalid_requests_say_why(rig: Any, model: Any) -> None:
    publisher = rig.publisher()
    manifest = publisher.publish(1, model())
    base = f"{publisher.endpoints[0]}/v1/weights"
    with httpx.Client(headers={"Authorization": f"Bearer {TOKEN}"}) as client:
        for path, reason in (
            ("solver/2/data", "version 2 is not available; available versions: 1"),
            ("verifier/1/data", "policy 'solver' only"),
            ("solver/1/readers/x", "no such route"),
            ("solver/../../etc/passwd", "no such route"),
        ):
            answer = client.get(f"{base}/{path}")
            assert answer.status_code == 404
            assert reason in answer.json()["error"]
        for wanted in (
            "bytes=5-4",
            f"bytes={manifest.size}-",
            "bytes=-5",
            "lines=1-2",
            "bytes=0-1,3-4",
        ):
            answer = client.get(f"{base}/solver/1/data", headers={"Range": wanted})
            assert answer.status_code == 416, wanted
        assert client.post(f"{base}/solver/1/data", content=b"x").status_code == 501
        assert client.request("GET", f"{base}/solver/1/data", content=b"x").status_code == 413
        assert client.delete(f"{base}/solver/1/readers/unknown").status_code == 204


def test_readers_and_connections_are_bounded(
    rig: Any, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "MAX_READERS", 2)
    publisher = rig.publisher()
    publisher.publish(1, model())
    url = f"{publisher.endpoints[0]}/v1/weights/solver/1/manifest"
    auth = {"Authorization": f"Bearer {TOKEN}"}
    codes = [
        httpx.get(url, headers=auth | {server.READER_HEADER: f"r{i}"}).status_code for i in range(3)
    ]
    assert codes == [200, 200, 429]
    monkeypatch.setattr(publisher._server.limits, "limits", Limits(1, 1, 1))
    with httpx.Client(headers=auth) as first, httpx.Client(headers=auth) as second:
        assert first.get(url).status_code == 200
        assert second.get(url).status_code == 503


def test_a_lease_without_renewals_expires(
    rig: Any, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = rig.publisher()
    publisher.publish(1, model(1))
    url = f"{publisher.endpoints[0]}/v1/weights/solver/1/manifest"
    reader = {"Authorization": f"Bearer {TOKEN}", server.READER_HEADER: "gone"}
    assert httpx.get(url, headers=reader).status_code == 200
    publisher.publish(2, model(2))
    publisher.retain(frozenset())
    assert httpx.get(url, headers=reader).status_code == 200  # leased, and renewed by this
    # The server renews a lease after its last byte, so perhaps after this thread has changed the clock.
    now, ahead = time.monotonic, 0.0
    monkeypatch.setattr(store.time, "monotonic", lambda: now() + ahead)
    nobody = {"Authorization": f"Bearer {TOKEN}"}
    deadline = now() + 10
    while httpx.get(url, headers=nobody).status_code == 200:
        assert now() < deadline, "the lease has not ended"
        ahead += store.LEASE_S + 1
        publisher.retain(frozenset())
    assert httpx.get(url, headers=reader).status_code == 404


def test_numbers_are_never_used_again_and_tensors_stay_the_same(
    rig: Any, announce: Any, read: Any, raw: Any, model: Any
) -> None:
    publisher, receiver = rig.publisher(), rig.receiver()
    publisher.publish(3, model())
    for number in (3, 2):
        with pytest.raises(WeightsError, match=f"version {number} cannot follow version 3"):
            publisher.publish(number, model())
    fewer, wider = model()[:-1], model(blocks=4)
    with pytest.raises(WeightsError, match=r"missing tensors: c\.bias"):
        publisher.publish(4, fewer)
    with pytest.raises(WeightsError, match=r"'b\.weight' is BF16 \[2048, 2048\], was BF16 \[1536"):
        publisher.publish(4, wider)
    with pytest.raises(WeightsError, match=r"unexpected or repeated tensor 'a\.weight'"):
        publisher.publish(4, [*model(), model()[1]])
    short = ExportedTensor("c.bias", "BF16", (7,), b"\0" * 13)
    with pytest.raises(WeightsError, match="13 bytes, expected 14"):
        publisher.publish(4, [*fewer, short])
    manifest = publisher.publish(4, model(9))  # a failed version leaves nothing behind
    assert read(receiver.fetch(announce(manifest, *publisher.endpoints), 20).path) == raw(model(9))


def test_config_and_addresses(rig: Any) -> None:
    taken = rig.publisher()
    port = int(taken.endpoints[0].rpartition(":")[2])
    with pytest.raises(UserError, match=f"cannot listen on 127.0.0.1:{port}.*choose another port"):
        rig.publisher(port=port)
    with pytest.raises(UserError, match=r"refuses to listen on '0\.0\.0\.0' without a token"):
        rig.publisher(token="", host="0.0.0.0", advertise="trainer-1")
    with pytest.raises(ValidationError, match="set advertise to the one that receivers use"):
        HttpConfig(host="0.0.0.0")
    assert (
        rig.publisher(host="0.0.0.0", advertise="trainer-1")
        .endpoints[0]
        .startswith("http://trainer-1:")
    )
    proxied = rig.publisher(advertise="https://weights.example/run7/")
    assert proxied.endpoints == ("https://weights.example/run7",)


def test_a_full_disk_is_an_error_and_leaves_nothing(
    rig: Any, announce: Any, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> int:
        raise OSError(28, os.strerror(28))

    publisher, receiver = rig.publisher(), rig.receiver()
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(WeightsError, match="No space left on device"):
        receiver.fetch(announce(publisher.publish(1, model()), *publisher.endpoints), 20)
    assert files(tmp_path) == []


def test_nothing_stays_after_kill_9_and_the_next_start(
    rig: Any, tmp_path: Path, shared_files: Any
) -> None:
    shm_before = shared_files()
    code = """
import sys, numpy as np
from pathlib import Path
from astraflow_core.types import Announcement, ExportedTensor
from astraflow_weights.publish.publisher import HttpPublisher
from astraflow_weights.fetch.receiver import HttpReceiver
p = HttpPublisher("solver", "", host="127.0.0.1", port=0, advertise=None)
m = p.publish(1, [ExportedTensor("w", "U8", (9,), np.ones(9, np.uint8))])
r = HttpReceiver(Path(sys.argv[1]), "", streams=2)
s = r.fetch(Announcement("solver", 1, "http", p.endpoints, m.digest, m.size), 20)
print(s.path, flush=True)
sys.stdin.read()
"""
    state = tmp_path / "state"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(state)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        path = Path(process.stdout.readline().strip())
        assert path.exists()
        living = rig.receiver()
        assert path.exists(), "a living receiver's files are its own"
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        assert path.exists()
        rig.receiver()
        assert not path.parent.exists()
        living.close()
        assert shared_files() - shm_before == set()
    finally:
        process.kill()
        process.communicate(timeout=10)
