"""The example version of docs/weights.md: anybody's receiver can be tested against the same bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import xxhash

from astraflow_core.types import ExportedTensor, Manifest
from astraflow_weights import snapshot
from astraflow_weights.snapshot import Snapshot, Snapshotter

VECTORS = Path(__file__).parent / "vectors"
BLOCK = 256


def tensors() -> list[ExportedTensor]:
    """One of each width, a scalar and one without elements, in no particular order."""
    return [
        ExportedTensor("bias", "BF16", (3,), np.array([0x3F80, 0xBF80, 0x7FC0], np.uint16)),
        ExportedTensor("empty", "F32", (0, 4), np.empty((0, 4), np.float32)),
        ExportedTensor("mask", "U8", (5,), np.arange(5, dtype=np.uint8)),
        ExportedTensor("scale", "F32", (), np.array(1.5, np.float32)),
        ExportedTensor("a.weight", "F32", (4, 25), np.arange(100, dtype=np.float32)),
    ]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Snapshot:
    monkeypatch.setattr(snapshot, "BLOCK_SIZE", BLOCK)
    return Snapshotter("solver").take(7, tensors(), 6)


def test_a_publisher_makes_the_committed_bytes(made: Snapshot) -> None:
    assert made.data == (VECTORS / "data").read_bytes()
    assert made.encoded == (VECTORS / "manifest").read_bytes()


def test_the_committed_bytes_are_what_the_page_says() -> None:
    """Nothing of ours reads them here."""
    said = json.loads((VECTORS / "vector.json").read_text())
    data = (VECTORS / "data").read_bytes()
    manifest: dict[str, Any] = msgspec.msgpack.decode((VECTORS / "manifest").read_bytes())
    blocks = [data[at : at + BLOCK] for at in range(0, len(data), BLOCK)]
    digests = [xxhash.xxh3_128_digest(block) for block in blocks]
    assert manifest["blocks"] == digests
    assert [digest.hex() for digest in digests] == said["blocks"]
    assert manifest["digest"] == said["digest"] == xxhash.xxh3_128_hexdigest(b"".join(digests))
    facts = ("policy", "version", "kind", "size", "block_size", "derives_from", "base")
    assert {key: manifest[key] for key in facts} == {key: said[key] for key in facts}
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert header.pop("__metadata__") == {"format": "pt"}
    assert (8 + length) % 8 == 0
    for tensor in manifest["tensors"]:
        entry = header.pop(tensor["name"])
        offsets = [8 + length + offset for offset in entry["data_offsets"]]
        assert (entry["dtype"], entry["shape"]) == (tensor["dtype"], tensor["shape"])
        assert offsets == [tensor["start"], tensor["end"]]
        assert data[offsets[0] : offsets[1]].hex() == said["tensors"][tensor["name"]]
    assert header == {}


def test_the_manifest_is_what_our_receiver_reads() -> None:
    manifest = msgspec.msgpack.decode((VECTORS / "manifest").read_bytes(), type=Manifest)
    assert msgspec.msgpack.encode(manifest) == (VECTORS / "manifest").read_bytes()
    assert [t.name for t in manifest.tensors] == ["a.weight", "empty", "scale", "bias", "mask"]
