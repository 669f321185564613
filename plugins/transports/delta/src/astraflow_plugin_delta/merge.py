"""Makes one link of several in a row, without the weights: steps add up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from astraflow_plugin_delta.coding.codec import SIGNED, Changes, Codec
from astraflow_plugin_delta.coding.frame import DENSE, HEAD, HUFFMAN, STEPS
from astraflow_plugin_delta.link import DeltaLink, pack_link


def merge(codec: Codec, links: Sequence[DeltaLink]) -> tuple[DeltaLink, bytes]:
    """The link from the base of the first to the version of the last, and its bytes.

    A block whose frames are all steps gets one frame with their sums, which is smaller than the sum of
    the frames as far as the same weights have moved. Frames that hold values cannot be added to steps:
    they follow each other, and what a whole block overwrites is left out.
    """
    first, last = links[0].head, links[-1].head
    head = msgspec.structs.replace(last, base=first.base, base_digest=first.base_digest)
    frames = list(_frames(codec, links, head.size, head.block_size))
    merged: dict[int, list[memoryview]] = {}
    for block, frame in frames:
        merged.setdefault(block, []).append(memoryview(frame))
    return DeltaLink(head, merged), pack_link(head, frames)


def _frames(
    codec: Codec, links: Sequence[DeltaLink], size: int, block_size: int
) -> Iterator[tuple[int, bytes | memoryview]]:
    for block in sorted(set().union(*(link.frames for link in links))):
        frames = [frame for link in links for frame in link.frames.get(block, ())]
        length = min(block_size, size - block * block_size)
        heads = [HEAD.unpack_from(frame) for frame in frames]
        codes, widths = [head[1] for head in heads], {head[2] for head in heads}
        if len(frames) == 1 or not set(codes) <= {STEPS, HUFFMAN} or len(widths) > 1:
            whole = max((i for i, code in enumerate(codes) if code == DENSE), default=0)
            for frame in frames[whole:]:
                yield block, frame
            continue
        decoded = [codec.decode(frame, block, length) for frame in frames]
        if summed := codec.encode(_sum(decoded), None, block):
            yield block, summed


def _sum(parts: Sequence[Changes]) -> Changes:
    width = parts[0].width
    positions = np.concatenate([part.positions for part in parts if part.positions is not None])
    steps = np.concatenate([part.steps for part in parts if part.steps is not None])
    order = np.argsort(positions, kind="stable")  # linear: it merges runs that are sorted
    positions = positions[order]
    starts = np.flatnonzero(np.diff(positions, prepend=-1))
    if not len(starts):
        return parts[0]
    sums = np.add.reduceat(steps[order].astype(np.int64), starts)
    sums = sums.astype(SIGNED[width]).astype(np.int32)  # wraps
    moved = sums != 0
    return Changes(width, parts[0].elements, positions[starts][moved], sums[moved])
