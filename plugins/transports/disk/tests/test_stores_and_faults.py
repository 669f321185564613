"""Objects that are cut, changed, missing or cannot be written; leases; a server with the S3 protocol."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from safetensors import deserialize

from astraflow_core.errors import UserError, WeightsError
from astraflow_core.types import (
    Announcement,
    ComponentContext,
    ExportedTensor,
    Manifest,
    RunInfo,
)
from astraflow_plugin_disk import source as source_module
from astraflow_plugin_disk import sweeper as sweeper_module
from astraflow_plugin_disk import writer as writer_module
from astraflow_plugin_disk.config import DiskConfig
from astraflow_plugin_disk.places import sign
from astraflow_plugin_disk.publisher import DiskPublisher
from astraflow_plugin_disk.store import ObjectStore
from astraflow_plugin_disk.transport import DiskTransport
from astraflow_testing.small_disk import largest_file
from astraflow_weights.fetch.landing import BlockReceiver

DEADLINE_S = 20.0
S3_SERVER = """
import sys
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server._server.server_port, flush=True)
sys.stdin.read()
"""
STUCK = """
import sys
from astraflow_plugin_disk.config import DiskConfig
from astraflow_plugin_disk.publisher import DiskPublisher
from astraflow_plugin_disk import store
from astraflow_core.types import ExportedTensor

publisher = DiskPublisher("run", "solver", "token", DiskConfig(url=sys.argv[1], part_mb=2, streams=1))
whole = ExportedTensor("a.weight", "BF16", (3 << 20,), bytes(6 << 20))
write = store.ObjectStore.write
def stuck(self, name, data):
    if name.endswith("data-00001"):
        print(publisher.endpoints[0], flush=True)
        sys.stdin.read()
    write(self, name, data)
store.ObjectStore.write = stuck
publisher.publish(1, [whole])
publisher.finish()
"""


def model(seed: int) -> list[ExportedTensor]:
    """Random bf16 weights of three blocks."""
    data = np.random.default_rng(seed).integers(0, 2**16, (1536, 2000), dtype=np.uint16)
    return [ExportedTensor("a.weight", "BF16", (1536, 2000), data)]


def content(path: Path) -> bytes:
    return bytes(dict(deserialize(path.read_bytes()))["a.weight"]["data"])


def raw(seed: int) -> bytes:
    return np.asarray(model(seed)[0].data).tobytes()


def told(manifest: Manifest, publisher: DiskPublisher) -> Announcement:
    return Announcement(
        "solver", manifest.version, "disk", publisher.endpoints, manifest.digest, manifest.size
    )


def written(publisher: DiskPublisher, version: int) -> Manifest:
    """Publish ``model(version)``, and wait until it is in the store."""
    manifest = publisher.publish(version, model(version))
    publisher.finish()
    return manifest


def until(what: Callable[[], object]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not what():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.01)


class Rig:
    """Both halves over one store."""

    def __init__(self, stack: ExitStack, folder: Path, **keys: Any) -> None:
        self._stack, self._folder = stack, folder
        self.keys = {"url": str(folder / "store"), "part_mb": 2, "give_up_after_s": 0.1} | keys

    def _transport(self, **keys: Any) -> DiskTransport:
        run = RunInfo("run", 0, 1, 0, ("solver",), self._folder)
        context = ComponentContext(run, "raas", "solver", 0, self._folder / "state", "token")
        return DiskTransport(DiskConfig(**(self.keys | keys)), context)

    def publisher(self, **keys: Any) -> DiskPublisher:
        return self._stack.enter_context(closing(self._transport(**keys).publisher()))

    def receiver(self, **keys: Any) -> BlockReceiver:
        return self._stack.enter_context(closing(self._transport(**keys).receiver()))


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with ExitStack() as stack:
        yield Rig(stack, tmp_path)


def started(stack: ExitStack, *arguments: str) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-c", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    stack.callback(process.communicate, timeout=20)
    stack.callback(process.kill)
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], 50)[0], "the process said nothing"
    return process, process.stdout.readline().strip()


def changed(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 8]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda data: data[:-7], r"data-00001 ends within block 1: 2097145 of 2097152"),
        (lambda data: b"", r"data-00001 ends within block 1"),
        (
            lambda data: changed(data, 1234),
            r"block 1 arrived corrupted|data-00001 holds a bad block",
        ),
    ],
    ids=["truncated", "empty", "flipped"],
)
def test_a_bad_object_is_named(rig: Rig, harm: Callable[[bytes], bytes], words: str) -> None:
    publisher, receiver = rig.publisher(), rig.receiver()
    manifest = written(publisher, 1)
    part = Path(publisher.endpoints[0]) / "v1" / "data-00001"
    honest = part.read_bytes()
    part.write_bytes(harm(honest))
    with pytest.raises(WeightsError, match=words):
        receiver.fetch(told(manifest, publisher), DEADLINE_S)
    part.write_bytes(honest)
    assert content(receiver.fetch(told(manifest, publisher), DEADLINE_S).path) == raw(1)


def test_an_object_that_appears_late_is_waited_for(rig: Rig) -> None:
    publisher, receiver = rig.publisher(), rig.receiver()
    manifest = written(publisher, 1)
    part = Path(publisher.endpoints[0]) / "v1" / "data-00002"
    away = part.rename(part.with_name("away"))
    with pytest.raises(WeightsError, match="deadline passed, 2 blocks"):
        receiver.fetch(told(manifest, publisher), 0.5)
    read = ObjectStore.read

    def then_there(store: ObjectStore, name: str, *span: int) -> bytes | None:
        data = read(store, name, *span)
        if data is None and away.exists():
            away.rename(part)
        return data

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ObjectStore, "read", then_there)
        assert content(receiver.fetch(told(manifest, publisher), DEADLINE_S).path) == raw(1)
    assert not away.exists()


def test_no_manifest_no_version(rig: Rig) -> None:
    publisher, receiver = rig.publisher(), rig.receiver()
    manifest = written(publisher, 1)
    place = Path(publisher.endpoints[0]) / "v1" / "manifest"
    honest = place.read_bytes()
    for harm, words in (
        (changed(honest, 60), "was changed, or signed"),
        (honest[:20], "was changed, or signed"),
        (b"", "was changed, or signed"),
        (sign(b"\xc1", "token", 2), "malformed manifest"),
    ):
        place.write_bytes(harm)
        with pytest.raises(WeightsError, match=words):
            receiver.fetch(told(manifest, publisher), DEADLINE_S)
    place.unlink()
    with pytest.raises(WeightsError, match="has no manifest there"):
        receiver.fetch(told(manifest, publisher), DEADLINE_S)


def test_addresses_outside_of_the_store_are_refused(rig: Rig, tmp_path: Path) -> None:
    publisher, receiver = rig.publisher(), rig.receiver()
    announced = told(publisher.publish(1, model(1)), publisher)
    inside = publisher.endpoints[0]
    for endpoint in (str(tmp_path), "/etc", f"{inside}/../x", "http://127.0.0.1/x", "s3://b/x", ""):
        with pytest.raises(WeightsError, match="outside of"):
            receiver.fetch(replace(announced, endpoints=(endpoint,)), DEADLINE_S)
    for policy in ("../solver", "", "S"):
        with pytest.raises(WeightsError, match="malformed announcement"):
            receiver.fetch(replace(announced, policy=policy), DEADLINE_S)
    for url in ("relative/path", "/a/../b", "s3://bucket/../other"):
        with pytest.raises(ValidationError, match=r"absolute path|out of the store"):
            DiskConfig(url=url)
    with pytest.raises(UserError, match="cannot open 'nothing://x"):
        rig.publisher(url="nothing://x")


def test_a_full_disk_is_waited_for_by_the_publisher_and_what_was_stays(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    publisher, receiver = rig.publisher(), rig.receiver()
    manifest = written(publisher, 1)
    with largest_file(1 << 20):
        late = publisher.publish(2, model(2))
        until(lambda: "version 2 waits for disk space: " in caplog.text)
        newest = publisher.publish(3, model(3))
        with pytest.raises(WeightsError, match=r"cannot be stored|writing a block to disk failed"):
            receiver.fetch(told(manifest, publisher), DEADLINE_S)
    for version, made in ((1, manifest), (2, late), (3, newest)):
        assert content(receiver.fetch(told(made, publisher), DEADLINE_S).path) == raw(version)
    assert caplog.text.count("waits for disk space") == 1
    assert "there is disk space again: version 2 is written" in caplog.text
    assert not list(receiver.folder.path.glob("*.part"))


def test_a_lease_lasts_while_it_is_renewed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The publisher counts on its own monotonic clock: what a reader wrote as time does not matter."""
    now = [1000.0]

    class Clock:
        monotonic = staticmethod(lambda: now[0])

    monkeypatch.setattr(sweeper_module, "time", Clock)
    monkeypatch.setattr(sweeper_module, "EVERY_S", 0.02)
    publisher = rig.publisher()
    root = Path(publisher.endpoints[0])
    (root / "readers").mkdir(parents=True)
    lease = root / "readers" / "slow"
    for version in range(1, 21):
        written(publisher, version)
        if version == 1:
            lease.write_text('{"version": 1, "until": "1970-01-01T00:00:00Z", "beat": 1}')
        publisher.retain(frozenset())
    until(lambda: {path.name for path in root.glob("v*")} == {"v1", "v20"})
    now[0] += 50
    renewed = root / "renewed"  # whole or not at all, as a store writes
    renewed.write_text('{"version": 1, "until": "1970-01-01T00:00:00Z", "beat": 2}')
    renewed.rename(lease)
    looked = len(publisher._sweeper._seen)
    until(lambda: publisher._sweeper._seen.get("slow", (b"", 0))[1] == now[0])
    now[0] += 50
    time.sleep(0.1)
    assert looked == 1 and (root / "v1" / "manifest").exists()
    now[0] += 50
    until(lambda: not (root / "v1" / "manifest").exists() and not lease.exists())


def test_malformed_leases_hold_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeper_module, "EVERY_S", 0.02)
    publisher = rig.publisher()
    root = Path(publisher.endpoints[0])
    written(publisher, 1)
    (root / "readers").mkdir()
    for name, body in (("a", "{"), ("b", "[]"), ("c", '{"version": "x"}'), ("d", "")):
        (root / "readers" / name).write_text(body)
    written(publisher, 2)
    publisher.retain(frozenset())
    until(lambda: not (root / "v1").exists())


def test_a_publisher_killed_before_the_manifest_offers_nothing(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        process, endpoint = started(stack, STUCK, str(tmp_path / "store"))
        process.kill()
        process.wait(20)
    assert (Path(endpoint) / "v1" / "data-00000").exists()
    wanted = Announcement("solver", 1, "disk", (endpoint,), "0" * 32, 100)
    monkeypatch.setattr(source_module, "STILL_S", 0.3)
    with pytest.raises(WeightsError, match="publishing it never finished"):
        rig.receiver().fetch(wanted, DEADLINE_S)


class Gate:
    """Holds every part that is written until it is opened; ``order``: the parts that came, by version."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.open, self.order = threading.Event(), list[str]()
        write = ObjectStore.write

        def held(store: ObjectStore, name: str, data: bytes) -> None:
            if "data" in name:
                self.order.append(name.partition("/")[0])
                assert self.open.wait(DEADLINE_S)
            write(store, name, data)

        patch.setattr(ObjectStore, "write", held)


def test_a_trainer_does_not_wait_for_the_store_and_the_newest_goes_before_older(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    publisher, receiver = rig.publisher(streams=1), rig.receiver()
    made = []
    for version in range(1, 6):
        made.append(publisher.publish(version, model(version)))
        publisher.retain(frozenset())
        until(lambda: gate.order)  # the first is being written
    with pytest.raises(WeightsError, match="deadline passed"):  # it waits for the missing parts
        receiver.fetch(told(made[4], publisher), 0.5)
    gate.open.set()
    assert content(receiver.fetch(told(made[4], publisher), DEADLINE_S).path) == raw(5)
    assert gate.order == ["v1"] * 3 + ["v5"] * 3
    with pytest.raises(WeightsError, match="it was dropped"):
        receiver.fetch(told(made[2], publisher), DEADLINE_S)


def test_a_version_that_must_stay_is_written_before_the_next_is_taken(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    publisher, receiver = rig.publisher(streams=1), rig.receiver()
    made = [publisher.publish(version, model(version)) for version in (1, 2)]
    publisher.retain(frozenset({2}))
    third = threading.Thread(target=lambda: made.append(publisher.publish(3, model(3))))
    third.start()
    until(lambda: gate.order)
    gate.open.set()
    third.join(DEADLINE_S)
    publisher.finish()
    for version in (2, 3):
        fetched = receiver.fetch(told(made[version - 1], publisher), DEADLINE_S)
        assert content(fetched.path) == raw(version)


def test_a_store_that_takes_nothing_is_named_in_time(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    publisher = rig.publisher()
    for version in (1, 2):
        publisher.publish(version, model(version))
    monkeypatch.setattr(writer_module, "STILL_S", 0.2)
    with pytest.raises(WeightsError, match="has taken no object for"):
        publisher.publish(3, model(3))
    gate.open.set()


def test_what_is_kept_can_be_carried_on(rig: Rig) -> None:
    publisher = rig.publisher(keep=True)
    manifest = publisher.publish(7, model(7))
    publisher.close()
    assert content(rig.receiver().fetch(told(manifest, publisher), DEADLINE_S).path) == raw(7)


def test_only_the_bad_blocks_of_a_part_are_read_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher, receiver = rig.publisher(part_mb=32), rig.receiver()
    manifest = publisher.publish(1, model(1))
    spans: list[tuple[int, int]] = []
    read = ObjectStore.read

    def once_bad(store: ObjectStore, name: str, *span: int) -> bytes | None:
        data = read(store, name, *span)
        if "data" in name and data is not None:
            spans.append((span[0], span[1]))
            return changed(data, 3 << 20) if len(spans) == 1 else data
        return data

    monkeypatch.setattr(source_module.ObjectStore, "read", once_bad)
    assert content(receiver.fetch(told(manifest, publisher), DEADLINE_S).path) == raw(1)
    assert spans == [(0, manifest.size), (2 << 20, 4 << 20)]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_server_with_the_s3_protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    s3fs = pytest.importorskip("s3fs")
    pytest.importorskip("moto")
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(key, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    for key in [k for k in os.environ if k.lower().endswith("_proxy")]:
        monkeypatch.delenv(key)
    with ExitStack() as stack:
        _, port = started(stack, S3_SERVER)
        options = {"client_kwargs": {"endpoint_url": f"http://127.0.0.1:{port}"}}
        bucket = s3fs.S3FileSystem(skip_instance_cache=True, **options)
        bucket.mkdir("weights")
        rig = Rig(stack, tmp_path, url="s3://weights/runs", options=options)
        publisher, receiver = rig.publisher(), rig.receiver()
        for version in (1, 2, 3):
            announced = told(publisher.publish(version, model(version)), publisher)
            publisher.retain(frozenset())
            source = receiver.fetch(announced, DEADLINE_S)
            assert content(source.path) == raw(version)
        root = publisher.endpoints[0].removeprefix("s3://")

        def held() -> set[str]:
            bucket.invalidate_cache()
            found = {path.removeprefix(root).split("/")[1] for path in bucket.find(root)}
            return found - {"progress"}

        until(lambda: held() == {"v3"})
        part = f"{root}/v3/data-00001"
        honest = bucket.cat_file(part)
        bucket.pipe_file(part, changed(honest, 99))
        with pytest.raises(WeightsError, match=r"block 1 arrived corrupted|holds a bad block"):
            receiver.fetch(announced, DEADLINE_S)
        bucket.pipe_file(part, honest[:-1])
        with pytest.raises(WeightsError, match="ends within block 1"):
            receiver.fetch(announced, DEADLINE_S)
        publisher.close()
        assert bucket.find(root) == []
        with pytest.raises(WeightsError, match="has no manifest there"):
            receiver.fetch(announced, DEADLINE_S)
        with pytest.raises(WeightsError, match="cannot be published"):
            rig.publisher(url="s3://no-such-bucket/runs", keep=True).publish(1, model(1))
