"""CPU seconds of a delta, from two states of the weights to a receiver's verified file: the reference over ours.

1.22 % of bf16 weights move by one unit in the last place. Ours: compare, pack, check, patch a mapped file in place
and hash every block of it. The reference algorithm verifies nothing. One thread; both sides in turn, A to B and
back again, on files in memory where there are any.
"""

from __future__ import annotations

import math
import mmap
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from astraflow_plugin_delta.coding.codec import Codec
from astraflow_plugin_delta.coding.kernels import load_kernel
from bench.baselines import whole_buffer_delta
from bench.support.delta_side import apply, encode, manifest_of, scan
from bench.support.timing import interleaved, ratio, spread
from bench.support.updates import uniform

DENSITY = 0.0122
MEMORY = Path("/dev/shm")
MILLIONS = (64, 128, 256)


def measure(quick: bool) -> dict[str, float]:
    """Ratios at 128 M weights; ``growth_exponent`` of our CPU seconds from 64 M to 256 M."""
    sizes = (16, 32, 64) if quick else MILLIONS
    pairs = 5
    ours: list[float] = []
    result: dict[str, float] = {}
    for millions in sizes:
        case = Case(millions << 20)
        ours.append(statistics.median(interleaved(pairs, case.ours_s)[0]))
        if millions == sizes[1]:
            result = beside(case, pairs)
        case.close()
    result["growth_exponent"] = math.log(ours[-1] / ours[0]) / math.log(sizes[-1] / sizes[0])
    result |= {f"cpu_s_{n}m": value for n, value in zip(sizes, ours, strict=True)}
    return result


def beside(case: Case, pairs: int) -> dict[str, float]:
    """Ours beside the reference, a copy and a read."""
    reference, mine, encoding, copying, scanning, reading = interleaved(
        pairs,
        case.reference_s,
        case.ours_s,
        lambda: cpu(case.encode),
        lambda: cpu(case.copy),
        lambda: cpu(case.scan),
        lambda: cpu(case.read),
    )
    return {
        "vs_reference": ratio(reference, mine),
        "spread": spread(reference, mine),
        "encode_over_memcpy": ratio(copying, encoding),
        "scan_over_half_read": ratio(reading, scanning),
        "extra_memory_over_model": case.extra_memory(),
        "encode_gb_per_s": case.size / statistics.median(encoding) / 1e9,
        "memcpy_gb_per_s": case.size / statistics.median(copying) / 1e9,
        "scan_gb_per_s": case.size / statistics.median(scanning) / 1e9,
        "half_read_gb_per_s": case.size / statistics.median(reading) / 1e9,
        "reference_cpu_s": statistics.median(reference),
    }


def cpu(act: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    began = time.process_time()
    act()
    return time.process_time() - began


class Case:
    """Two states of so many weights, and a receiver of either kind."""

    def __init__(self, count: int) -> None:
        self._codec = Codec(load_kernel("auto"))
        self._states = list(uniform(count, DENSITY))
        self._manifests = [manifest_of(state, n) for n, state in enumerate(self._states)]
        self._target = np.zeros_like(self._states[0])
        self._folder = tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)
        folder = Path(self._folder.name)
        ours = folder / "ours"
        ours.write_bytes(memoryview(self._states[0].view(np.uint8)))
        with ours.open("r+b") as file:  # a receiver keeps its files mapped
            self._file = mmap.mmap(file.fileno(), 0)
        self._theirs = whole_buffer_delta.Receiver(self._states[0], folder / "theirs")
        self._at = {"ours": 0, "theirs": 0}
        self.size: int = self._states[0].nbytes

    def _turn(self, side: str) -> tuple[int, int]:
        at = self._at[side]
        self._at[side] = 1 - at
        return at, 1 - at

    def ours_s(self) -> float:
        """One version on our way."""
        old, new = self._turn("ours")

        def act() -> None:
            link = self._link(old, new)
            apply(self._codec, link, self._manifests[old], self._manifests[new], self._file)

        return cpu(act)

    def reference_s(self) -> float:
        """One version on the other way."""
        old, new = self._turn("theirs")
        return cpu(
            lambda: self._theirs.apply(
                whole_buffer_delta.encode(self._states[old], self._states[new])
            )
        )

    def encode(self) -> bytes:
        """Only the sender's half of ours."""
        return self._link(0, 1)

    def scan(self) -> int:
        """Only the comparison."""
        return scan(self._codec, *self._states)

    def copy(self) -> None:
        """One state, copied."""
        self._target[:] = self._states[0]

    def read(self) -> Any:
        """Both states, read."""
        return [state.view(np.uint64).sum() for state in self._states]

    def extra_memory(self) -> float:
        """Most memory that encoding allocates, over one state."""
        tracemalloc.start()
        self.encode()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return float(peak / self.size)

    def close(self) -> None:
        """Remove the files."""
        self._file.close()
        self._folder.cleanup()

    def _link(self, old: int, new: int) -> bytes:
        states, manifests = self._states, self._manifests
        return encode(self._codec, states[old], states[new], manifests[old], manifests[new])
