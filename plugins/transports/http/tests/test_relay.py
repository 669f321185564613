"""Receivers that serve each other, and what stands in front of a publisher."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from astraflow_core.errors import WeightsError
from astraflow_plugin_http.config import HttpConfig
from astraflow_weights.arrivals import Arrivals
from astraflow_weights.fetch import receiver
from astraflow_weights.publish import fan_out
from astraflow_weights.publish.fan_out import FanOut

TOKEN = "a-token-of-the-run"
BLOCK = 2 << 20


def test_the_tree_has_no_cycles_and_spreads_the_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fan_out, "DIRECT", 2)
    tree = FanOut()
    addresses = ["", "http://b", "http://c", "http://d", "", "http://f"]
    given = [tree.place(f"r{i}", address) for i, address in enumerate(addresses)]
    assert given == ["", "", "http://b", "http://b", "http://c", "http://c"]
    assert tree.place("again", "http://b") not in ("", "http://b")
    tree.leave("r0")
    assert tree.place("late", "") == ""


def test_arrivals_are_waited_for_until_they_fail() -> None:
    arrivals = Arrivals()
    arrivals.update({0, 1})
    assert arrivals.wait_for(range(2), 0)
    assert not arrivals.wait_for(range(3), 0)
    waiting = ThreadPoolExecutor(1).submit(arrivals.wait_for, range(3), 20)
    arrivals.add(2)
    assert waiting.result(20)
    waiting = ThreadPoolExecutor(1).submit(arrivals.wait_for, range(4), 20)
    arrivals.fail()
    assert not waiting.result(20)
    assert arrivals.wait_for(range(3), 0)


def test_a_receiver_serves_another_while_it_receives(
    rig: Any,
    announce: Any,
    read: Any,
    raw: Any,
    model: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fan_out, "DIRECT", 1)
    monkeypatch.setattr(receiver, "RELAY_STALL_S", 30)
    publisher = rig.publisher(relay=True)
    first, second = rig.receiver(relay=True, streams=1), rig.receiver(streams=2)
    tensors = model(blocks=8)
    manifest = publisher.publish(1, tensors)
    proxy, other = rig.proxy(publisher), rig.proxy(publisher)
    proxy.gate.clear()
    with ThreadPoolExecutor(2) as pool:
        feeding = pool.submit(first.fetch, announce(manifest, proxy.url), 30)
        assert proxy.started.wait(15)
        fed = pool.submit(second.fetch, announce(manifest, other.url), 30)
        held, until = first._relay._stores["solver"]._held, time.monotonic() + 20
        while not held[1].sending and time.monotonic() < until:
            time.sleep(0.005)
        assert held[1].sending, "the second waits for blocks that the first has not got yet"
        proxy.gate.set()
        sources = [feeding.result(30), fed.result(30)]
    assert all(read(source.path) == raw(tensors) for source in sources)
    assert other.ranges == [], "the second was to fetch from the first alone"


def test_a_relay_that_dies_or_sends_wrong_bytes_is_replaced_by_the_publisher(
    rig: Any,
    announce: Any,
    read: Any,
    raw: Any,
    model: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fan_out, "DIRECT", 1)
    publisher = rig.publisher()
    tensors = model(blocks=16)
    manifest = publisher.publish(1, tensors)
    relay, leaf = rig.receiver(relay=True), rig.receiver()
    source = relay.fetch(announce(manifest, *publisher.endpoints), 20)
    blocker = {"Authorization": f"Bearer {TOKEN}", "AstraFlow-Reader": "direct"}
    url = f"{publisher.endpoints[0]}/v1/weights/solver/1/manifest"
    assert "AstraFlow-From" not in httpx.get(url, headers=blocker).headers
    with source.path.open("r+b") as file:  # damaged memory of the relay
        file.seek(BLOCK + 5)
        byte = file.read(1)
        file.seek(BLOCK + 5)
        file.write(bytes([byte[0] ^ 4]))
    proxy = rig.proxy(publisher)
    fetched = leaf.fetch(announce(manifest, proxy.url), 20)
    assert read(fetched.path) == raw(tensors)
    # With the bad block comes what other streams had not received when the relay was given up.
    assert (BLOCK, 2 * BLOCK) in proxy.ranges
    assert len(proxy.ranges) < 8, "the relay is not used"
    relay.close()
    assert read(rig.receiver().fetch(announce(manifest, *publisher.endpoints), 20).path) == raw(
        tensors
    )


def test_a_released_version_is_relayed_no_more(
    rig: Any, announce: Any, model: Any, tmp_path: Path
) -> None:
    publisher, relay = rig.publisher(), rig.receiver(relay=True)
    source = relay.fetch(announce(publisher.publish(1, model()), *publisher.endpoints), 20)
    auth = {"Authorization": f"Bearer {TOKEN}"}
    port = relay._relay.port("127.0.0.1")
    url = f"http://127.0.0.1:{port}/v1/weights/solver/1/data"
    assert httpx.get(url).status_code == 401
    assert httpx.get(url, headers=auth).content == source.path.read_bytes()
    relay.release(source)
    assert httpx.get(url, headers=auth).status_code == 404
    relay.close()
    with pytest.raises(httpx.ConnectError):
        httpx.get(url, headers=auth)


def test_caches_may_keep_what_never_changes(rig: Any, model: Any) -> None:
    publisher = rig.publisher()
    manifest = publisher.publish(1, model())
    url = f"{publisher.endpoints[0]}/v1/weights/solver/1"
    auth = {"Authorization": f"Bearer {TOKEN}"}
    for what in ("data", "manifest"):
        answer = httpx.get(f"{url}/{what}", headers=auth)
        assert answer.headers["ETag"] == f'"{manifest.digest}"'
        assert "immutable" in answer.headers["Cache-Control"]
        assert answer.headers["Vary"] == "Authorization"
        again = httpx.get(f"{url}/{what}", headers=auth | {"If-None-Match": answer.headers["ETag"]})
        assert (again.status_code, again.content) == (304, b"")


def test_a_bucket_of_plain_files_is_tried_before_the_publisher(
    rig: Any, announce: Any, read: Any, raw: Any, model: Any, tmp_path: Path
) -> None:
    """A static file server with ranges stands for an object store; it has no readers and no leases."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.routing import Mount
    from starlette.staticfiles import StaticFiles

    origin = rig.publisher()
    tensors = model()
    manifest = origin.publish(1, tensors)
    folder = tmp_path / "bucket" / "v1" / "weights" / "solver" / "1"
    folder.mkdir(parents=True)
    for what in ("manifest", "data"):
        answer = httpx.get(
            f"{origin.endpoints[0]}/v1/weights/solver/1/{what}",
            headers={"Authorization": f"Bearer {TOKEN}"},
        )
        (folder / what).write_bytes(answer.content)
    server = uvicorn.Server(
        uvicorn.Config(
            Starlette(routes=[Mount("/run", StaticFiles(directory=tmp_path / "bucket"))]),
            host="127.0.0.1",
            port=0,
            log_level="critical",
        )
    )
    ready = threading.Event()
    server.startup, startup = None, server.startup  # type: ignore[assignment]

    async def started(sockets: Any = None) -> None:
        await startup(sockets)
        ready.set()

    server.startup = started  # type: ignore[method-assign]
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        assert ready.wait(20)
        port = server.servers[0].sockets[0].getsockname()[1]
        mirror = f"http://127.0.0.1:{port}/run"
        publisher = rig.publisher(mirrors=[f"{mirror}/"])
        assert publisher.endpoints[0] == mirror
        source = rig.receiver().fetch(announce(manifest, mirror), 20)
        assert read(source.path) == raw(tensors)
        with pytest.raises(WeightsError, match="404"):
            rig.receiver().fetch(announce(origin.publish(2, model(2)), mirror), 20)
    finally:
        server.should_exit = True
        thread.join(20)
    with pytest.raises(ValidationError, match="expected an address such as"):
        HttpConfig(mirrors=("bucket",))
