"""Behaviour of shared memory only: reused files, leases of the kernel, notifications by a socket, full memory."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors import deserialize

from astraflow_core.errors import UserError, WeightsError
from astraflow_core.types import Announcement, ExportedTensor, Manifest
from astraflow_plugin_shm.publisher import ShmPublisher
from astraflow_plugin_shm.receiver import ShmReceiver
from astraflow_testing.small_disk import largest_file
from astraflow_weights.snapshot import BLOCK_SIZE

DEADLINE_S = 20.0

STUCK = """
import sys
from pathlib import Path
import numpy as np
from astraflow_core.types import ExportedTensor
from astraflow_plugin_shm.publisher import ShmPublisher

publisher = ShmPublisher("solver", Path(sys.argv[1]))
whole = ExportedTensor("a", "BF16", (1024, 1024), np.zeros((1024, 1024), np.uint16))
publisher.publish(1, [whole])
def tensors():
    print(publisher.endpoints[0], flush=True)
    sys.stdin.read()
    yield whole
publisher.publish(2, tensors())
"""
HOLDER = """
import json, sys
from pathlib import Path
from astraflow_core.types import Announcement
from astraflow_plugin_shm.receiver import ShmReceiver

told = json.loads(sys.argv[2])
told["endpoints"] = tuple(told["endpoints"])
receiver = ShmReceiver(Path(sys.argv[1]), ahead=False)
print(receiver.fetch(Announcement(**told), 20).path, flush=True)
sys.stdin.read()
"""


def model(seed: int) -> list[ExportedTensor]:
    """Random bf16 weights of three blocks."""
    data = np.random.default_rng(seed).integers(0, 2**16, (1536, 2000), dtype=np.uint16)
    return [ExportedTensor("a.weight", "BF16", (1536, 2000), data)]


def content(path: Path) -> bytes:
    return bytes(dict(deserialize(path.read_bytes()))["a.weight"]["data"])


def content_of(seed: int) -> bytes:
    return np.asarray(model(seed)[0].data).tobytes()


def told(manifest: Manifest, publisher: ShmPublisher) -> Announcement:
    return Announcement(
        "solver", manifest.version, "shm", publisher.endpoints, manifest.digest, manifest.size
    )


def until(what: Callable[[], object]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not what():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.01)


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder with a short path, since notifications use a socket in it."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="shm-") as folder:
        yield Path(folder)


@pytest.fixture
def publisher(memory: Path) -> Iterator[ShmPublisher]:
    with closing(ShmPublisher("solver", memory)) as made:
        yield made


@pytest.fixture
def receiver(memory: Path) -> Iterator[ShmReceiver]:
    with closing(ShmReceiver(memory, ahead=False)) as made:
        yield made


def test_a_held_version_is_not_overwritten_by_twenty_others(
    publisher: ShmPublisher, receiver: ShmReceiver, memory: Path
) -> None:
    first = receiver.fetch(told(publisher.publish(1, model(1)), publisher), DEADLINE_S)
    for version in range(2, 22):
        publisher.publish(version, model(version))
        publisher.retain(frozenset())
    assert content(first.path) == np.asarray(model(1)[0].data).tobytes()
    held = {path.stat().st_ino for path in memory.rglob("*") if path.stat().st_size > 1 << 20}
    assert len(held) == 3  # the reader's, and two that alternate


def test_two_files_alternate(publisher: ShmPublisher, receiver: ShmReceiver) -> None:
    files, source = [], None
    for version in range(1, 9):
        announced = told(publisher.publish(version, model(version)), publisher)
        publisher.retain(frozenset())
        newer = receiver.fetch(announced, DEADLINE_S)
        if source is not None:
            receiver.release(source)
        source = newer
        files.append(source.path.stat().st_ino)
        assert content(source.path) == np.asarray(model(version)[0].data).tobytes()
    assert len(set(files)) <= 3 and len(set(files[2:])) == 2


def test_a_notification_brings_a_version_before_it_is_requested(
    publisher: ShmPublisher, memory: Path
) -> None:
    with closing(ShmReceiver(memory, ahead=True)) as receiver:
        receiver.fetch(told(publisher.publish(1, model(1)), publisher), DEADLINE_S)
        announced: list[Announcement] = []

        def ahead() -> bool:  # a subscription takes a moment: the first rings may be missed
            if len(announced) < 2 or not receiver._ahead:
                version = len(announced) + 2
                announced.append(told(publisher.publish(version, model(version)), publisher))
                publisher.retain(frozenset())
                time.sleep(0.05)
            return receiver._ahead is not None

        until(ahead)
        last = announced[-1]
        until(lambda: receiver._ahead is None or receiver._ahead.manifest.version == last.version)
        source = receiver.fetch(last, DEADLINE_S)
        assert content(source.path) == np.asarray(model(last.version)[0].data).tobytes()


def rung(receiver: ShmReceiver, publisher: ShmPublisher) -> Announcement:
    """A version that the receiver has verified before its ``fetch`` is called."""
    receiver.fetch(told(publisher.publish(1, model(1)), publisher), DEADLINE_S)
    last = told(publisher.publish(2, model(2)), publisher)
    end = time.monotonic() + DEADLINE_S
    while not (receiver._ahead and receiver._ahead.manifest.version == last.version):
        assert time.monotonic() < end, "no notification arrived"
        if not receiver._ahead:  # a subscription takes a moment: the first rings may be missed
            last = told(publisher.publish(last.version + 1, model(2)), publisher)
            publisher.retain(frozenset())
        time.sleep(0.05)
    return last


def test_a_version_written_after_the_notification_is_verified_again(
    publisher: ShmPublisher, memory: Path
) -> None:
    with closing(ShmReceiver(memory, ahead=True)) as receiver:
        last = rung(receiver, publisher)
        (path,) = publisher._folder.path.glob(f"solver-{last.version}.safetensors")
        with path.open("r+b") as file:
            file.seek(BLOCK_SIZE + 7000)
            byte = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 16]))
        with pytest.raises(WeightsError, match="block 1 differs from the published one"):
            receiver.fetch(last, DEADLINE_S)
        assert not list(receiver._folder.path.glob(f"solver-{last.version}-*"))


def test_what_no_one_wrote_to_is_not_verified_twice(
    publisher: ShmPublisher, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(ShmReceiver(memory, ahead=True)) as receiver:
        last = rung(receiver, publisher)
        monkeypatch.setattr(receiver, "_open", None)
        assert content(receiver.fetch(last, DEADLINE_S).path) == content_of(2)


def test_full_memory_is_an_error_and_the_old_version_serves(
    publisher: ShmPublisher, receiver: ShmReceiver
) -> None:
    manifest = publisher.publish(1, model(1))
    short = pytest.raises(WeightsError, match=r"no room for a version of 6\.1 MB")
    with largest_file(1 << 20), short:
        publisher.publish(2, model(2))
    source = receiver.fetch(told(manifest, publisher), DEADLINE_S)
    assert content(source.path) == np.asarray(model(1)[0].data).tobytes()
    again = receiver.fetch(told(publisher.publish(2, model(2)), publisher), DEADLINE_S)
    assert content(again.path) == np.asarray(model(2)[0].data).tobytes()


@pytest.mark.parametrize("block", [0, 1, 2])
def test_a_changed_block_is_named(
    publisher: ShmPublisher, receiver: ShmReceiver, memory: Path, block: int
) -> None:
    manifest = publisher.publish(1, model(1))
    (path,) = memory.rglob("*.safetensors")
    with path.open("r+b") as file:
        file.seek(block * BLOCK_SIZE + 7000)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 16]))
    with pytest.raises(WeightsError, match=f"block {block} differs from the published one"):
        receiver.fetch(told(manifest, publisher), DEADLINE_S)
    assert not list(receiver._folder.path.glob("*.safetensors"))


def test_a_truncated_file_and_sizes_that_lie_are_refused(
    publisher: ShmPublisher, receiver: ShmReceiver, memory: Path
) -> None:
    manifest = publisher.publish(1, model(1))
    (path,) = memory.rglob("*.manifest")
    honest = path.read_bytes()
    for lie, words in (
        (replace(manifest, size=1 << 50), "blocks of"),
        (replace(manifest, block_size=0), "blocks of"),
        (replace(manifest, block_size=1 << 40), "blocks of"),
        (replace(manifest, tensors=()), "other tensors"),
        (replace(manifest, version=9), "version 9"),
    ):
        path.write_bytes(msgspec.msgpack.encode(lie))
        with pytest.raises(WeightsError, match=words):
            receiver.fetch(told(manifest, publisher), DEADLINE_S)
    path.write_bytes(honest[: len(honest) // 2])
    with pytest.raises(WeightsError, match="malformed manifest"):
        receiver.fetch(told(manifest, publisher), DEADLINE_S)
    path.write_bytes(honest)
    (data,) = memory.rglob("*.safetensors")
    os.truncate(data, manifest.size - 1)
    with pytest.raises(WeightsError, match=f"has {manifest.size - 1} bytes"):
        receiver.fetch(told(manifest, publisher), DEADLINE_S)


def test_addresses_and_names_lead_nowhere_else(
    publisher: ShmPublisher, receiver: ShmReceiver, tmp_path: Path
) -> None:
    announced = told(publisher.publish(1, model(1)), publisher)
    elsewhere = tmp_path / "astraflow-weights-solver-away"
    elsewhere.symlink_to(tmp_path)
    for endpoint in ("shm://h/etc", "http://h/x", "shm://", f"shm://h{elsewhere}", "shm://h/../x"):
        with pytest.raises(WeightsError, match=r"expected an address|no living publisher"):
            receiver.fetch(replace(announced, endpoints=(endpoint,)), DEADLINE_S)
    for policy in ("../solver", "solver/../x", "", "S"):
        with pytest.raises(WeightsError, match="malformed announcement"):
            receiver.fetch(replace(announced, policy=policy), DEADLINE_S)
    (data,) = publisher._folder.path.glob("*.safetensors")
    moved = data.rename(tmp_path / "real")
    data.symlink_to(moved)
    with pytest.raises(WeightsError, match="cannot be opened"):
        receiver.fetch(announced, DEADLINE_S)


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for half in (
        lambda: ShmPublisher("solver", tmp_path / "file" / "x"),
        lambda: ShmReceiver(tmp_path / "file" / "x", ahead=False),
    ):
        with pytest.raises(UserError, match="cannot use directory"):
            half()
    with pytest.raises(UserError, match="too long a path"):
        ShmPublisher("solver", tmp_path / ("x" * 80))


def started(stack: ExitStack, *arguments: str) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-c", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    stack.callback(process.communicate, timeout=20)
    stack.callback(process.kill)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_a_publisher_killed_while_it_fills_leaves_nothing_for_long(
    memory: Path, receiver: ShmReceiver
) -> None:
    with ExitStack() as stack:
        process, endpoint = started(stack, STUCK, str(memory))
        process.kill()
        process.wait(20)
        wanted = Announcement("solver", 2, "shm", (endpoint,), "0" * 32, 100)
        with pytest.raises(WeightsError, match="no living publisher"):
            receiver.fetch(wanted, DEADLINE_S)
    assert list(memory.glob("astraflow-weights-*"))
    ShmPublisher("solver", memory).close()
    assert not list(memory.glob("astraflow-weights-*"))


def test_a_killed_receiver_frees_its_file(publisher: ShmPublisher, memory: Path) -> None:
    manifest = publisher.publish(1, model(1))
    inode = next(memory.rglob("*.safetensors")).stat().st_ino
    order = msgspec.json.encode(told(manifest, publisher)).decode()
    with ExitStack() as stack:
        process, path = started(stack, HOLDER, str(memory), order)
        assert Path(path).stat().st_ino == inode
        publisher.publish(2, model(2))
        publisher.retain(frozenset())
        publisher.publish(3, model(3))
        assert Path(path).stat().st_ino == inode
        assert content(Path(path)) == np.asarray(model(1)[0].data).tobytes()
        process.kill()
        process.wait(20)
    publisher.retain(frozenset())
    reused = set()
    for version in (4, 5, 6):
        publisher.publish(version, model(version))
        publisher.retain(frozenset())
        reused.add(next(memory.rglob(f"solver-{version}.safetensors")).stat().st_ino)
    assert inode in reused
    ShmReceiver(memory, ahead=False).close()
    assert not list(memory.glob("astraflow-received-*"))
