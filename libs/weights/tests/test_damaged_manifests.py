"""A manifest that arrives damaged is fetched again, as blocks are; then the next publisher is tried."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import xxhash

from astraflow_core.errors import WeightsError
from astraflow_core.types import Announcement, ExportedTensor, Manifest
from astraflow_weights.direct.receiver import DirectHttpReceiver
from astraflow_weights.failures import BAD_ATTEMPTS, PublisherFailed
from astraflow_weights.fetch.client import VersionClient
from astraflow_weights.fetch.landing import BlockFile, BlockReceiver
from astraflow_weights.snapshot import Snapshotter

SNAPSHOT = Snapshotter("solver").take(
    1, [ExportedTensor("a", "U8", (5000,), np.arange(5000, dtype=np.uint8))], None
)
SOUND = bytes(SNAPSHOT.encoded)
DAMAGED = {
    "a text that is not UTF-8": SOUND.replace(b"solver", b"\xffolver"),
    "another digest": SOUND.replace(xxhash.xxh3_128_digest(SNAPSHOT.data), bytes(16)),
    "cut off": SOUND[:-1],
}


def told(*endpoints: str) -> Announcement:
    manifest = SNAPSHOT.manifest
    return Announcement("solver", 1, "x", endpoints, manifest.digest, manifest.size)


@contextlib.contextmanager
def receiver(folder: Path, answers: dict[str, Iterator[bytes]]) -> Iterator[BlockReceiver]:
    """Fetches from publishers that answer each request for a manifest with the next of ``answers``."""

    class Publisher:
        def __init__(self, announcement: Announcement, endpoint: str) -> None:
            self.answers = answers[endpoint]

        def manifest(self, landing: BlockFile) -> bytes:
            return next(self.answers)

        def deliver(self, manifest: Manifest, landing: BlockFile) -> None:
            for block in landing.missing():
                at = block * manifest.block_size
                landing.land(block, SNAPSHOT.data[at : at + manifest.block_size])

        def close(self) -> None:
            pass

    made = BlockReceiver(folder, Publisher)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_manifest_is_asked_for_again(tmp_path: Path, damage: str) -> None:
    answers = {"a": iter([DAMAGED[damage]] * (BAD_ATTEMPTS - 1) + [SOUND])}
    with receiver(tmp_path, answers) as made:
        assert made.fetch(told("a"), 20).path.read_bytes() == bytes(SNAPSHOT.data)


@pytest.mark.parametrize("damage", DAMAGED)
def test_after_some_attempts_the_next_publisher_is_tried(tmp_path: Path, damage: str) -> None:
    broken = [DAMAGED[damage]] * BAD_ATTEMPTS
    with receiver(tmp_path, {"a": iter(broken), "b": iter([SOUND])}) as made:
        assert made.fetch(told("a", "b"), 20).path.read_bytes() == bytes(SNAPSHOT.data)
    with (
        receiver(tmp_path, {"a": iter(broken)}) as made,
        pytest.raises(WeightsError, match=r"a: (malformed|its) manifest"),
    ):
        made.fetch(told("a"), 20)


@pytest.mark.parametrize("damage", DAMAGED)
def test_the_same_over_http(monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    answers = iter([DAMAGED[damage]] * (BAD_ATTEMPTS - 1) + [SOUND] + [DAMAGED[damage]] * 99)
    monkeypatch.setattr(VersionClient, "_read_all", lambda *_: next(answers))
    client = VersionClient(told(), "http://127.0.0.1:1", "", time.monotonic() + 20)
    assert client.manifest() == SNAPSHOT.manifest
    with pytest.raises(PublisherFailed, match="manifest"):
        client.manifest()


@pytest.mark.parametrize(
    "desk", [b"[1]", b"{}", b'{"ask": 3}', b"[" * 1000, b"\xff", b'{"ask": "x"}']
)
def test_a_desk_that_says_something_else_is_no_delivery(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, desk: bytes
) -> None:
    monkeypatch.setattr(
        VersionClient, "_read_all", lambda _, what, __: SOUND if what == "manifest" else desk
    )
    made = DirectHttpReceiver(tmp_path, "", streams=1)
    try:
        with pytest.raises(WeightsError, match=r"no direct delivery of version 1 .*http://a:1"):
            made.meet(told("http://a:1"), "raas-0", 1, 20)
    finally:
        made.close()
