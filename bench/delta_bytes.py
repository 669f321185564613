"""Bytes of a delta: over the entropy of its positions and steps, and of the reference algorithm over ours.

Simulated Adam updates at three learning rates, changes of one unit in the last place spread evenly, and the deltas
of a real training run (`bench/recorded/`, made by `bench.support.record_deltas`). All that travels counts: heads,
tables and checksums. Both kernels give the same bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from astraflow_plugin_delta.coding.codec import Codec
from astraflow_plugin_delta.coding.kernels import load_kernel
from astraflow_plugin_delta.link import LinkHead, entry_of, open_link, pack_link
from astraflow_weights.snapshot import BLOCK_SIZE
from bench.baselines import whole_buffer_delta
from bench.support.delta_side import blocks_of, encode, manifest_of
from bench.support.entropy import Seen
from bench.support.updates import simulated, uniform

RECORDED = Path(__file__).parent / "recorded"
UNIFORM = {"0.3pct": 0.003, "30pct": 0.3}


def measure(quick: bool) -> dict[str, float]:
    """``over_bound_*`` and ``vs_reference_*`` by kind of delta; ``1pct`` is simulated at lr 3e-6, and
    ``over_bound_recorded`` the worst of the recorded ones."""
    codec = Codec(load_kernel("auto"))
    count = (4 if quick else 16) << 20
    result: dict[str, float] = {}
    for name, (old, new) in simulated(count).items():
        result |= figures("1pct" if name == "lr3e6" else name, codec, old, new)
    for name, density in UNIFORM.items():
        result |= figures(name, codec, *uniform(count, density))
    recorded = {
        file.stem: recorded_figures(codec, file) for file in sorted(RECORDED.glob("*.delta"))
    }
    for name, each in recorded.items():
        result |= {f"{field}_{name}": value for field, value in each.items()}
    result["over_bound_recorded"] = max(each["over_bound"] for each in recorded.values())
    return result


def figures(name: str, codec: Codec, old: Any, new: Any) -> dict[str, float]:
    """Of one pair of versions."""
    steps = (new - old).astype(np.int16)
    seen = Seen()
    link = encode(codec, old, new, manifest_of(old, 1), manifest_of(new, 2))
    seen.add(len(steps), steps[steps != 0], len(link))
    try:
        reference = len(whole_buffer_delta.encode(old, new))
    except whole_buffer_delta.DoesNotFit:
        reference = new.nbytes
    return {
        f"over_bound_{name}": seen.size / seen.bound(),
        f"vs_reference_{name}": reference / seen.size,
        f"bytes_per_changed_{name}": seen.size / seen.changed,
        f"density_{name}": seen.changed / seen.elements,
    }


def recorded_figures(codec: Codec, file: Path) -> dict[str, float]:
    """Of blocks of a real delta: what they say is found and packed again, from steps of zeros."""
    data = file.read_bytes()
    kept = open_link(memoryview(data), entry_of(head_of(data), data))
    seen, frames = Seen(), []
    nothing = np.zeros(BLOCK_SIZE // 2, np.uint16)
    (_, before), *_ = blocks_of(nothing)
    for block, (frame, *_) in kept.frames.items():
        after = nothing.copy()
        (_, view), *_ = blocks_of(after)
        codec.apply(frame, view, block)
        changes = codec.diff(before, view, 2)
        frames.append((block, codec.encode(changes, view, block)))
        seen.add(changes.elements, changes.steps)
    seen.size = len(pack_link(kept.head, frames))
    return seen.figures()


def head_of(data: bytes) -> LinkHead:
    """The head of a link in a file."""
    length = int.from_bytes(data[8:12], "little")
    return msgspec.msgpack.decode(data[20 : 20 + length], type=LinkHead)
