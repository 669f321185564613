"""Whole versions, bit for bit, to any number of readers."""

from __future__ import annotations

import mmap
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import xxhash

from astraflow_core.errors import WeightsError
from astraflow_core.types import ExportedTensor
from astraflow_core.types.weights import DTYPE_BYTES

TOKEN = "a-token-of-the-run"
BLOCK = 2 << 20


def test_every_dtype_and_odd_shapes_arrive_bit_for_bit(
    rig: Any, announce: Any, read: Any, raw: Any
) -> None:
    generator = np.random.default_rng(0)
    shapes = [(), (1,), (0,), (3, 0, 2), (7,), (3, 5), (1, 1, 3), (700_001,)]
    tensors = [
        ExportedTensor(
            f"{dtype}.{index}",
            dtype,
            shape,
            generator.integers(0, 256, (int(np.prod(shape)) * width,), dtype=np.uint8),
        )
        for dtype, width in DTYPE_BYTES.items()
        for index, shape in enumerate(shapes)
    ]
    publisher, receiver = rig.publisher(), rig.receiver()
    manifest = publisher.publish(1, iter(tensors))
    source = receiver.fetch(announce(manifest, *publisher.endpoints), 20)
    assert read(source.path) == raw(tensors)
    assert source.path.stat().st_size == manifest.size == source.bytes_received
    assert {t.name: t.shape for t in manifest.tensors} == {t.name: t.shape for t in tensors}


def test_multidimensional_arrays_with_zeros_and_scalars_are_taken(
    rig: Any, announce: Any, read: Any
) -> None:
    tensors = [
        ExportedTensor("z", "F32", (2, 0), np.zeros((2, 0), np.float32)),
        ExportedTensor("s", "F32", (), np.array(1.5, np.float32)),
    ]
    publisher, receiver = rig.publisher(), rig.receiver()
    source = receiver.fetch(announce(publisher.publish(1, tensors), *publisher.endpoints), 20)
    assert read(source.path) == {"z": b"", "s": np.float32(1.5).tobytes()}


@pytest.mark.slow
def test_torch_reads_the_file_in_another_process(rig: Any, announce: Any) -> None:
    pytest.importorskip("torch")
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    odd = np.array([1, 2, 3], dtype=np.uint8)
    publisher, receiver = rig.publisher(), rig.receiver()
    tensors = [ExportedTensor("odd", "U8", (3,), odd), ExportedTensor("w", "F32", (3, 4), values)]
    source = receiver.fetch(announce(publisher.publish(1, tensors), *publisher.endpoints), 20)
    code = (
        "import sys; from safetensors.torch import load_file; t = load_file(sys.argv[1]);"
        "print(t['w'].sum().item(), t['odd'].tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(source.path)], capture_output=True, text=True, timeout=50
    )
    assert done.stdout.split(maxsplit=1) == ["66.0", "[1, 2, 3]\n"], done.stderr


def test_the_manifest_describes_blocks_that_anyone_can_verify(
    rig: Any, model: Any, raw: Any
) -> None:
    publisher = rig.publisher()
    manifest = publisher.publish(4, model(), derives_from=3)
    url = f"{publisher.endpoints[0]}/v1/weights/solver/4"
    auth = {"Authorization": f"Bearer {TOKEN}"}
    data = httpx.get(f"{url}/data", headers=auth).content
    blocks = [data[i : i + BLOCK] for i in range(0, len(data), BLOCK)]
    assert tuple(xxhash.xxh3_128_digest(block) for block in blocks) == manifest.blocks
    assert xxhash.xxh3_128_hexdigest(b"".join(manifest.blocks)) == manifest.digest
    assert {t.name: data[t.start : t.end] for t in manifest.tensors} == raw(model())
    assert (manifest.kind, manifest.derives_from, manifest.size) == ("full", 3, len(data))
    part = httpx.get(f"{url}/data", headers=auth | {"Range": "bytes=100-199"})
    assert (part.status_code, part.content) == (206, data[100:200])
    assert part.headers["Content-Range"] == f"bytes 100-199/{len(data)}"
    rest = httpx.get(f"{url}/data", headers=auth | {"Range": f"bytes={len(data) - 3}-"})
    assert rest.content == data[-3:]


def test_the_digest_does_not_depend_on_the_order_of_export(rig: Any, model: Any) -> None:
    forward, backward = rig.publisher(), rig.publisher()
    assert forward.publish(1, model()).digest == backward.publish(1, reversed(model())).digest
    assert forward.publish(2, model(1)).digest == backward.publish(2, reversed(model(1))).digest


def test_four_receivers_at_once(rig: Any, announce: Any, read: Any, raw: Any, model: Any) -> None:
    publisher = rig.publisher()
    tensors = model(blocks=6)
    announcement = announce(publisher.publish(1, tensors), *publisher.endpoints)
    receivers = [rig.receiver() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        sources = list(pool.map(lambda r: r.fetch(announcement, 30), receivers))
    assert len({source.path for source in sources}) == 4
    assert all(read(source.path) == raw(tensors) for source in sources)


def test_one_receiver_fetches_the_same_version_twice_at_once(
    rig: Any, announce: Any, read: Any, raw: Any, model: Any
) -> None:
    publisher, receiver = rig.publisher(), rig.receiver()
    announcement = announce(publisher.publish(1, model()), *publisher.endpoints)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: receiver.fetch(announcement, 30), range(2))
    receiver.release(first)
    assert not first.path.exists()
    assert read(second.path) == raw(model())


def test_a_version_goes_when_its_last_reader_has_left(rig: Any, announce: Any, model: Any) -> None:
    publisher, receiver = rig.publisher(), rig.receiver()
    first = publisher.publish(1, model(1))
    source = receiver.fetch(announce(first, *publisher.endpoints), 20)
    second = publisher.publish(2, model(2))
    receiver.fetch(announce(first, *publisher.endpoints), 20)  # kept until told otherwise
    publisher.retain(frozenset({1}))
    receiver.fetch(announce(first, *publisher.endpoints), 20)
    publisher.retain(frozenset())
    with pytest.raises(
        WeightsError, match=r"404: version 1 is not available; available versions: 2"
    ):
        receiver.fetch(announce(first, *publisher.endpoints), 20)
    receiver.fetch(announce(second, *publisher.endpoints), 20)
    assert source.path.exists()  # what was fetched stays with the receiver


def test_memory_of_dropped_versions_is_used_again(rig: Any, model: Any) -> None:
    publisher = rig.publisher()
    before = _shared_kib()
    for version in range(1, 12):
        publisher.publish(version, model(version, blocks=4))
        publisher.retain(frozenset())
    assert _shared_kib() - before < 3 * 9 * 1024  # two buffers of 8 MiB, not eleven


def test_a_released_file_is_overwritten_only_if_no_process_has_it_open(
    rig: Any, announce: Any, read: Any, raw: Any, model: Any
) -> None:
    publisher, receiver = rig.publisher(), rig.receiver()
    published = {version: model(version) for version in range(1, 6)}

    def fetch(version: int) -> Any:
        manifest = publisher.publish(version, published[version])
        source = receiver.fetch(announce(manifest, *publisher.endpoints), 20)
        assert read(source.path) == raw(published[version])
        return source

    first = fetch(1)
    inode = first.path.stat().st_ino
    receiver.release(first)
    second = fetch(2)
    assert second.path.stat().st_ino == inode
    was = second.path.read_bytes()
    with second.path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    receiver.release(second)
    third = fetch(3)
    assert third.path.stat().st_ino != inode
    assert mapped[:] == was
    mapped.close()
    receiver.release(third)
    receiver.release(fetch(4))
    assert sum(1 for _ in third.path.parent.iterdir()) == 2, "one spare, and the lock"


def test_release_and_close_remove_every_file(
    rig: Any, announce: Any, model: Any, tmp_path: Path
) -> None:
    publisher, receiver = rig.publisher(), rig.receiver()
    manifest = publisher.publish(1, model())
    source = receiver.fetch(announce(manifest, *publisher.endpoints), 20)
    with source.path.open("rb") as still_open:
        receiver.release(source)
        assert not source.path.exists()
        assert len(still_open.read()) == manifest.size
    receiver.release(source)
    receiver.fetch(announce(manifest, *publisher.endpoints), 20)
    receiver.close()
    assert not list((tmp_path / "state").rglob("*"))
    with pytest.raises(WeightsError, match=r"closed|stored"):
        receiver.fetch(announce(manifest, *publisher.endpoints), 20)
    with pytest.raises(ValueError, match="not returned by this receiver"):
        rig.receiver().release(source)


def _shared_kib() -> int:
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("RssShmem")).split()[1])
