"""Applies links to a version, block by block, and says which blocks became right."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence

import xxhash

from astraflow_core.types import Manifest
from astraflow_plugin_delta.coding.codec import Codec
from astraflow_plugin_delta.coding.frame import BadFrame
from astraflow_plugin_delta.link import DeltaLink

log = logging.getLogger(__name__)


def patch(
    codec: Codec,
    links: Sequence[DeltaLink],
    manifest: Manifest,
    base: memoryview,
    file: int | None,
    check: Callable[[], None],
) -> set[int]:
    """Bring ``base`` to the version of ``manifest`` and return the blocks whose xxh3-128 is the manifest's.

    With an open ``file`` blocks are copied and patched on the way, and only right ones are written to it;
    without one ``base`` is writable and patched in place. ``check`` is called before each block and may
    raise. Steps are applied once to bytes that were verified as the base; if a frame is damaged, or the
    base has decayed, the result has another hash.
    """
    good: set[int] = set()
    wrong: dict[int, str] = {}
    size = manifest.block_size
    if len(base) != manifest.size:
        return good
    scratch = memoryview(bytearray(min(size, manifest.size) if file is not None else 0))
    for block, digest in enumerate(manifest.blocks):
        check()
        with base[block * size : (block + 1) * size] as there, scratch[: len(there)] as copy:
            if file is not None:
                copy[:] = there
            target = there if file is None else copy
            if reason := _apply(codec, links, target, block, digest, warm=file is not None):
                wrong[block] = reason
                continue
            if file is not None:
                _write(file, copy, block * size)
            good.add(block)
    if wrong:
        block, reason = next(iter(wrong.items()))
        log.warning(
            "version %d of policy %r: %d blocks are wrong after their delta and are fetched whole, the first is "
            "block %d: %s",
            manifest.version, manifest.policy, len(wrong), block, reason,
        )  # fmt: skip
    return good


def _apply(
    codec: Codec,
    links: Sequence[DeltaLink],
    target: memoryview,
    block: int,
    digest: bytes,
    warm: bool,
) -> str:
    """Why the block did not become what it should; empty if it did."""
    for link in links:
        for frame in link.frames.get(block, ()):
            try:
                codec.apply(frame, target, block, warm)
                warm = True
            except BadFrame as error:
                return f"its frame from version {link.head.base} to {link.head.version}: {error}"
    return "" if xxhash.xxh3_128_digest(target) == digest else "its hash is not the manifest's"


def _write(file: int, data: memoryview, offset: int) -> None:
    position = 0
    while position < len(data):
        position += os.pwrite(file, data[position:], offset + position)
