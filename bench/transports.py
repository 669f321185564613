"""One version from a publisher to a verified file in another process, by each transport: MB/s and CPU seconds.

Loopback, one receiver, steady state (buffers touched before), the transports in turn. ``NAME_mb_s`` is the size
over the wall time from the announcement to the verified file (publishing is on neither side: the snapshot,
``NAME_publish_mb_s``, and what ``disk`` writes after it, ``disk_write_mb_s``), ``NAME_cpu_s_per_gb`` the CPU seconds of both
processes, ``NAME_over_http`` and ``NAME_cpu_over_http`` the medians of the ratios of interleaved pairs.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np

from astraflow_core.types import Announcement, ExportedTensor
from astraflow_plugin_disk.publisher import DiskPublisher
from bench.co_located import POLICY, Mapper, transport
from bench.support.timing import cpu_of, interleaved, ratio

NAMES = ("http", "zmq", "shm", "disk")
SIZES = {True: 32 << 20, False: 128 << 20}
"""Bytes of the model in a quick run and in a whole one."""


def measure(quick: bool) -> dict[str, float]:
    """Each transport in turn, once per round."""
    data = np.random.default_rng(0).integers(0, 1 << 63, SIZES[quick] // 8, dtype=np.int64)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        sides = {name: Side(stack, name, Path(folder), data) for name in NAMES}
        walls = interleaved(3 if quick else 5, *(side.run for side in sides.values()))
    fields: dict[str, float] = {"model_mb": data.nbytes / 1e6}
    for (name, side), wall in zip(sides.items(), walls, strict=True):
        cpu = side.cpu[-len(wall) :]
        fields[f"{name}_mb_s"] = data.nbytes / 1e6 / statistics.median(wall)
        fields[f"{name}_cpu_s_per_gb"] = statistics.median(cpu) / (data.nbytes / 1e9)
        fields[f"{name}_publish_mb_s"] = data.nbytes / 1e6 / statistics.median(side.published)
        if side.written:
            fields[f"{name}_write_mb_s"] = data.nbytes / 1e6 / statistics.median(side.written)
        if name != "http":
            fields[f"{name}_over_http"] = ratio(walls[0], wall)
            fields[f"{name}_cpu_over_http"] = ratio(cpu, sides["http"].cpu[-len(wall) :])
    return fields


class Side:
    """A publisher here and a receiver in another process. ``cpu`` seconds of both while a version is fetched,
    ``published`` wall seconds of each publish, ``written`` until a store had it, for a transport that has one."""

    def __init__(self, stack: ExitStack, name: str, folder: Path, data: Any) -> None:
        keys = {"url": str(folder / "store")} if name == "disk" else {}
        table = {"use": name, **keys}
        self._publisher = stack.enter_context(closing(transport(folder, table).publisher()))
        self._receiver = stack.enter_context(Mapper(folder / f"{name}-receiver", table))
        flat = memoryview(data).cast("B")
        self._tensor = ExportedTensor("weight", "BF16", (len(flat) // 2,), flat)
        self._name, self._version = name, 0
        self.cpu: list[float] = []
        self.published: list[float] = []
        self.written: list[float] = []
        for _ in range(2):
            self.run()
        self.published.clear()
        self.written.clear()

    def run(self) -> float:
        """Publish, and the wall seconds of the fetch."""
        self._version += 1
        began = time.perf_counter()
        manifest = self._publisher.publish(self._version, [self._tensor])
        self._publisher.retain(frozenset())
        self.published.append(time.perf_counter() - began)
        if isinstance(self._publisher, DiskPublisher):
            self._publisher.finish()
            self.written.append(time.perf_counter() - began)
        told = Announcement(
            POLICY,
            self._version,
            self._name,
            self._publisher.endpoints,
            manifest.digest,
            manifest.size,
        )
        cpu = time.process_time() + cpu_of(self._receiver.process.pid)
        began = time.perf_counter()
        self._receiver.map(told)
        wall = time.perf_counter() - began
        self.cpu.append(time.process_time() + cpu_of(self._receiver.process.pid) - cpu)
        return wall
