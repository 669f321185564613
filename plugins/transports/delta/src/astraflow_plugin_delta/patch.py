"""Applies links to a file, block by block, and says which blocks became right."""

from __future__ import annotations

import logging
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import xxhash

from astraflow_core.types import Manifest
from astraflow_plugin_delta.codec import Codec
from astraflow_plugin_delta.frame import BadFrame
from astraflow_plugin_delta.link import Link

log = logging.getLogger(__name__)


def patch(
    codec: Codec,
    links: Sequence[Link],
    manifest: Manifest,
    file: int,
    base: Path | None,
    check: Callable[[], None],
) -> set[int]:
    """Bring the open ``file`` to the version of ``manifest`` and return the blocks whose xxh3-128 is the
    manifest's.

    With a ``base`` blocks are copied from it and patched on the way, and only right ones are written;
    without one the file itself is the base and is patched in place. ``check`` is called before each block
    and may raise. Steps are applied once to bytes that were verified as the base; if a frame is damaged,
    or the base has decayed, the result has another hash.
    """
    good: set[int] = set()
    size = manifest.block_size
    with ExitStack() as stack:
        view = stack.enter_context(_mapped(base, file))
        if len(view) != manifest.size:
            return good
        scratch = memoryview(bytearray(min(size, manifest.size)))
        for block, digest in enumerate(manifest.blocks):
            check()
            with view[block * size : (block + 1) * size] as there:
                if base is None:
                    if _apply(codec, links, there, block, digest):
                        good.add(block)
                    continue
                with scratch[: len(there)] as target:
                    target[:] = there
                    if _apply(codec, links, target, block, digest):
                        _write(file, target, block * size)
                        good.add(block)
    return good


def _apply(
    codec: Codec, links: Sequence[Link], target: memoryview, block: int, digest: bytes
) -> bool:
    for link in links:
        for frame in link.frames.get(block, ()):
            try:
                codec.apply(frame, target, block)
            except BadFrame as error:
                log.warning(
                    "block %d of the delta from version %d to %d of policy %r: %s; it is fetched whole",
                    block, link.head.base, link.head.version, link.head.policy, error,
                )  # fmt: skip
                return False
    if xxhash.xxh3_128_digest(target) == digest:
        return True
    log.warning("block %d became other bytes than the manifest names; it is fetched whole", block)
    return False


@contextmanager
def _mapped(base: Path | None, file: int) -> Iterator[memoryview]:
    """The bytes of ``base``, or those of ``file`` to be written."""
    with ExitStack() as stack:
        if base is None:
            mapping = stack.enter_context(mmap.mmap(file, 0))
        else:
            opened = stack.enter_context(base.open("rb"))
            mapping = stack.enter_context(mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ))
        yield stack.enter_context(memoryview(mapping))


def _write(file: int, data: memoryview, offset: int) -> None:
    position = 0
    while position < len(data):
        position += os.pwrite(file, data[position:], offset + position)
