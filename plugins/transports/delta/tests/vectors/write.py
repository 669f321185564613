"""Writes the test vectors that are missing. Existing ones are kept: a reader has to decode them, whatever the current
writer would produce."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from astraflow_plugin_delta.coding.codec import Codec
from astraflow_plugin_delta.coding.frame import open_frame
from astraflow_plugin_delta.coding.kernel_numpy import NumpyKernel
from astraflow_plugin_delta.link import LinkHead, entry_of, pack_index, pack_link

HERE = Path(__file__).parent
CASES: dict[str, tuple[int, float, int]] = {
    "steps": (2, 0.02, 3), "signs": (2, 0.01, 1), "bitmap": (2, 0.6, 2), "fp32": (4, 1.0, 900),
    "fp8": (1, 0.1, 2), "values": (2, 0.02, 30_000), "dense": (2, 1.0, 30_000),
}  # fmt: skip
"""Name → width, density, longest step."""
CLUSTERS = {"clusters": (2, 9000), "clusters_fp8": (1, 120), "clusters_fp32": (4, 2**31)}
"""Name → width, longest step, of blocks that are worth Huffman codes."""
SIZE = 4096


def main() -> None:
    """Write every file."""
    codec, generator = Codec(NumpyKernel()), np.random.default_rng(20)
    known = HERE / "vectors.json"
    said: dict[str, Any] = json.loads(known.read_text()) if known.exists() else {}
    blocks: dict[str, tuple[Any, Any]] = {}
    for name, (width, density, longest) in CASES.items():
        old = generator.integers(0, 256, SIZE, dtype=np.uint8).view(f"<u{width}")
        new = old.copy()
        where = np.flatnonzero(generator.random(len(old)) < density)
        steps = generator.integers(1, longest + 1, where.size) * generator.choice(
            [-1, 1], where.size
        )
        new[where] += steps.astype(new.dtype)
        blocks[name] = old, new
    for name, (width, longest) in CLUSTERS.items():
        blocks[name] = clustered(width, longest)
    for name, (old, new) in blocks.items():
        if (HERE / f"{name}.frame").exists():
            continue
        width = old.itemsize
        before, after = (memoryview(each.view(np.uint8)) for each in (old, new))
        frame = codec.encode(codec.diff(before, after, width), after, 3)
        head, payload = open_frame(memoryview(frame), 3, SIZE)
        said[name] = {field: getattr(head, field) for field in head.__slots__}
        said[name]["payload"] = len(payload)
        for suffix, data in (("old", before), ("new", after), ("frame", frame)):
            (HERE / f"{name}.{suffix}").write_bytes(data)
        if name == "steps":
            again = codec.encode(codec.diff(before, after, width), after, 5)
            link_head = LinkHead("solver", 6, "0" * 32, 7, "1" * 32, 6 * SIZE, SIZE, b"")
            link = pack_link(link_head, [(3, frame), (5, again)])
            (HERE / "link.bin").write_bytes(link)
            (HERE / "links.bin").write_bytes(pack_index([entry_of(link_head, link)]))
    known.write_text(json.dumps(said, indent=1) + "\n")


def clustered(width: int, longest: int) -> tuple[Any, Any]:
    """Changes side by side, most by +33 or so, few by anything up to ``longest``."""
    generator = np.random.default_rng(width)
    old = generator.integers(0, 256, SIZE, dtype=np.uint8).view(f"<u{width}")
    new = old.copy()
    where = np.cumsum(generator.choice([1, 2, 3, 90], len(old), p=[0.6, 0.25, 0.13, 0.02])) - 1
    where = where[where < len(old)]
    steps = np.maximum(generator.normal(33, 4, where.size).astype(np.int64), 1)
    steps[::40] = generator.integers(1, longest, len(steps[::40]), endpoint=True)
    steps[::9] *= -1
    new[where] += steps.astype(new.dtype)
    return old, new


if __name__ == "__main__":
    main()
