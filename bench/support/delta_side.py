"""A delta as the transport `delta` makes and applies it, without a network."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np
import xxhash

from astraflow_core.types import Manifest
from astraflow_plugin_delta.coding.codec import Codec
from astraflow_plugin_delta.link import LinkHead, entry_of, open_link, pack_link
from astraflow_plugin_delta.patch import patch
from astraflow_weights.snapshot import BLOCK_SIZE


def blocks_of(weights: Any) -> Iterator[tuple[int, memoryview]]:
    """Number and bytes of each block."""
    data = memoryview(weights.view(np.uint8))
    for block, start in enumerate(range(0, len(data), BLOCK_SIZE)):
        yield block, data[start : start + BLOCK_SIZE]


def manifest_of(weights: Any, version: int) -> Manifest:
    """What a receiver verifies with."""
    digests = tuple(xxhash.xxh3_128_digest(data) for _, data in blocks_of(weights))
    return Manifest(
        policy="solver",
        version=version,
        kind="full",
        size=weights.nbytes,
        block_size=BLOCK_SIZE,
        tensors=(),
        blocks=digests,
        digest=xxhash.xxh3_128_hexdigest(b"".join(digests)),
    )


def scan(codec: Codec, old: Any, new: Any) -> int:
    """Find what changed, and no more; how much that is."""
    found = 0
    for (_, before), (_, after) in zip(blocks_of(old), blocks_of(new), strict=True):
        changes = codec.diff(before, after, 2)
        assert changes.positions is not None
        found += len(changes.positions)
    return found


def encode(codec: Codec, old: Any, new: Any, base: Manifest, made: Manifest) -> bytes:
    """The link between two uint16 buffers."""
    frames = []
    for (block, before), (_, after) in zip(blocks_of(old), blocks_of(new), strict=True):
        if frame := codec.encode(codec.diff(before, after, 2), after, block):
            frames.append((block, frame))
    head = LinkHead(
        "solver", base.version, base.digest, made.version, made.digest, made.size, BLOCK_SIZE, b""
    )
    return pack_link(head, frames)


def apply(codec: Codec, link: bytes, base: Manifest, made: Manifest, mapping: mmap.mmap) -> None:
    """Check a link as a receiver does, patch the mapped file in place and verify every block."""
    head = LinkHead(
        "solver", base.version, base.digest, made.version, made.digest, made.size, BLOCK_SIZE, b""
    )
    opened = open_link(memoryview(link), entry_of(head, link))
    with memoryview(mapping) as view:
        good = patch(codec, [opened], made, view, None, lambda: None)
    if len(good) != len(made.blocks):
        raise RuntimeError(f"{len(made.blocks) - len(good)} blocks are wrong after their delta")
