"""Named bytes that belong to a version, and transports that know a cheaper way to some blocks."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import xxhash

from astraflow_core.errors import WeightsError
from astraflow_core.types import Manifest
from astraflow_weights.failures import MissingObject, PublisherFailed
from astraflow_weights.fetch.client import VersionClient
from astraflow_weights.fetch.receiver import HttpReceiver
from astraflow_weights.publish import store
from astraflow_weights.publish.publisher import HttpPublisher
from astraflow_weights.snapshot import Snapshot

TOKEN = "a-token-of-the-run"
BLOCK = 2 << 20


def random_bytes(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8).tobytes()


def client_of(announcement: Any, endpoint: str, **keys: Any) -> VersionClient:
    return VersionClient(
        announcement, endpoint, keys.pop("token", TOKEN), time.monotonic() + 20, **keys
    )


def test_an_object_arrives_whole_in_parts_and_across_broken_connections(
    rig: Any, announce: Any, model: Any
) -> None:
    publisher = rig.publisher()
    data = random_bytes(3_000_001)
    manifest = publisher.publish(1, model())
    publisher.attach(1, "from-0", data)
    publisher.attach(1, "none", b"")
    proxy = rig.proxy(publisher, cut_after=[70_000, 0, 1])
    with client_of(announce(manifest), proxy.url) as client:
        assert client.manifest() == manifest
        into = bytearray(len(data))
        client.read_into("from-0", memoryview(into))
        assert into == data
        assert client.received == len(data)
        part = bytearray(1000)
        client.read_into("from-0", memoryview(part), offset=2_999_001)
        assert part == data[-1000:]
        client.read_into("from-0", memoryview(bytearray()))
        assert client.read("from-0", len(data)) == data
        assert client.read("none", 0) == b""


def test_what_is_not_there_or_does_not_fit_is_reported(rig: Any, announce: Any, model: Any) -> None:
    publisher = rig.publisher()
    announcement = announce(publisher.publish(1, model()))
    publisher.attach(1, "delta", b"12345")
    with client_of(announcement, publisher.endpoints[0]) as client:
        with pytest.raises(MissingObject, match="404: version 1 has no object 'other'"):
            client.read("other", 10)
        with pytest.raises(PublisherFailed, match="delta has 5 bytes, at most 4 are read"):
            client.read("delta", 4)
        for name in ("../data", "a/b", "", "A", "x" * 97, ".hidden", "a\r\nb"):
            with pytest.raises(ValueError, match="object name"):
                client.read(name, 10)
    with (
        client_of(announcement, publisher.endpoints[0]) as client,
        pytest.raises(PublisherFailed, match=r"answered 206 with 5 bytes to a range of 6"),
    ):
        client.read_into("delta", memoryview(bytearray(6)))
    with (
        client_of(announcement, publisher.endpoints[0], token="another") as client,
        pytest.raises(PublisherFailed, match="401"),
    ):
        client.read("delta", 10)


def test_objects_never_change_and_go_with_their_version(
    rig: Any, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = rig.publisher()
    with pytest.raises(WeightsError, match="version 1 is not available"):
        publisher.attach(1, "a", b"1")
    publisher.publish(1, model(1))
    publisher.attach(1, "a", b"1")
    with pytest.raises(WeightsError, match="has an object 'a' already"):
        publisher.attach(1, "a", b"2")
    with pytest.raises(WeightsError, match=r"object name '\.\./a', expected"):
        publisher.attach(1, "../a", b"2")
    monkeypatch.setattr(store, "MAX_OBJECTS", 2)
    publisher.attach(1, "b", b"")
    with pytest.raises(WeightsError, match="or 2 others"):
        publisher.attach(1, "c", b"")
    url = f"{publisher.endpoints[0]}/v1/weights/solver/1/objects/a"
    auth = {"Authorization": f"Bearer {TOKEN}"}
    assert httpx.get(url).status_code == 401
    assert httpx.get(url, headers=auth).content == b"1"
    publisher.publish(2, model(2))
    publisher.retain(frozenset())
    assert httpx.get(url, headers=auth).status_code == 404


class Changes:
    """A companion whose object says which blocks differ from the version before."""

    def __init__(self) -> None:
        self.before: Snapshot | None = None
        self.seen: dict[int, bytes] = {}

    def begin(self, previous: Snapshot | None) -> None:
        self.before, self.seen = previous, {}

    def block(self, index: int, data: memoryview) -> None:
        self.seen[index] = xxhash.xxh3_128_digest(data)

    def objects(self, snapshot: Snapshot) -> Mapping[str, Any]:
        assert tuple(self.seen[i] for i in range(len(self.seen))) == snapshot.manifest.blocks
        if self.before is None:
            return {}
        assert xxhash.xxh3_128_digest(self.before.data[:BLOCK]) == self.before.manifest.blocks[0]
        old = self.before.manifest
        changed = [i for i, d in enumerate(snapshot.manifest.blocks) if d != old.blocks[i]]
        return {f"from-{old.version}": bytes(changed)}


class Patching(HttpReceiver):
    """Copies the blocks that have not changed from the version before."""

    base: Path | None = None

    def prepare(self, client: VersionClient, manifest: Manifest, file: int) -> set[int]:
        if self.base is None:
            return set()
        changed = client.read(f"from-{manifest.derives_from}", 1000)
        same = set(range(len(manifest.blocks))) - set(changed)
        with self.base.open("rb") as old:
            for block in same:
                os.pwrite(
                    file, os.pread(old.fileno(), BLOCK, block * BLOCK), block * manifest.block_size
                )
        return same


def test_another_transport_brings_some_blocks_and_the_rest_is_fetched(
    tmp_path: Path, rig: Any, announce: Any, read: Any, raw: Any, model: Any
) -> None:
    publisher = HttpPublisher(
        "solver", TOKEN, host="127.0.0.1", port=0, advertise=None, companion=Changes()
    )
    receiver = Patching(tmp_path / "patched", TOKEN, streams=2)
    with closing(publisher), closing(receiver):
        first = receiver.fetch(announce(publisher.publish(1, model()), *publisher.endpoints), 20)
        receiver.base = first.path
        proxy = rig.proxy(publisher)
        changed = model()
        changed[0].data[600, 0] ^= 1  # in the second block
        source = receiver.fetch(announce(publisher.publish(2, changed, 1), proxy.url), 20)
        assert read(source.path) == raw(changed)
        assert proxy.ranges == [(BLOCK, 2 * BLOCK)]
        assert source.bytes_received == BLOCK + 1
