"""Weights in shared memory: from a publish to a mapping that an engine can use, compared with one copy and one hash.

The receiver is a process of its own, as in a run. A cycle is: the trainer's half copies and hashes a model
into shared memory and announces it; the receiver's half leases, maps and verifies every block, and the mapping is open.
The other side is one memcpy of as many bytes and one xxh3-128 over them in blocks of 2 MiB, both into and over memory
that was touched before. ``over_memcpy_and_hash`` is their time over ours (wall), medians of the ratios of interleaved
pairs; ``cpu_over_memcpy_and_hash`` the same of the CPU seconds of both processes. ``announced_to_mapped_ms`` is the
time that the receiver still needs if it was notified before its ``fetch`` is called, as in a run.
"""

from __future__ import annotations

import json
import mmap
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from astraflow_core.catalog import Catalog
from astraflow_core.config.models import ComponentTable
from astraflow_core.protocols.transport import Transport
from astraflow_core.types import Announcement, ComponentContext, ExportedTensor, RunInfo
from astraflow_weights.snapshot import BLOCK_SIZE
from bench.support.timing import cpu_of, interleaved, ratio, spread

POLICY = "solver"
DEADLINE_S = 60.0
ASKED = {"use": "shm", "ahead": False}
RUNG = {"use": "shm"}
SIZES = {True: 128 << 20, False: 512 << 20}
"""Bytes of the model in a quick run and in a whole one."""


def measure(quick: bool) -> dict[str, float]:
    """Pairs of a cycle and of a memcpy with a hash."""
    size, pairs = SIZES[quick], 7 if quick else 15
    values = np.random.default_rng(0).integers(0, 1 << 63, size // 8, dtype=np.int64)
    data = values.data.cast("B")
    with tempfile.TemporaryDirectory() as folder:
        with (
            closing(transport(Path(folder), ASKED).publisher()) as publisher,
            Mapper(Path(folder), ASKED) as mapper,
        ):
            cycle, copied = Cycle(publisher, mapper, data), CopyAndHash(data)
            ours, theirs = interleaved(pairs, cycle.run, copied.run)
        with (
            closing(transport(Path(folder), RUNG).publisher()) as publisher,
            Mapper(Path(folder), RUNG) as mapper,
        ):
            rung = Cycle(publisher, mapper, data, pause_s=4 * statistics.median(theirs))
            for _ in range(5):
                rung.run()
    cpu = cycle.cpu[-len(copied.cpu[1:]) :]
    return {
        "over_memcpy_and_hash": ratio(theirs, ours),
        "spread": spread(theirs, ours),
        "cpu_over_memcpy_and_hash": ratio(copied.cpu[1:], cpu),
        "publish_to_mapped_ms": 1000 * statistics.median(ours),
        "memcpy_and_hash_ms": 1000 * statistics.median(theirs),
        "announced_to_mapped_ms": 1000 * statistics.median(rung.mapped[1:]),
        "model_mb": size / 1e6,
    }


class CopyAndHash:
    """One copy and one hash of ``data``; ``cpu`` seconds of each run."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._copy = memoryview(mmap.mmap(-1, len(data)))
        self.cpu: list[float] = []

    def run(self) -> float:
        """Wall seconds."""
        began, cpu = time.perf_counter(), time.process_time()
        self._copy[:] = self._data
        for at in range(0, len(self._copy), BLOCK_SIZE):
            xxhash.xxh3_128_digest(self._copy[at : at + BLOCK_SIZE])
        self.cpu.append(time.process_time() - cpu)
        return time.perf_counter() - began


class Cycle:
    """Publishes ``data`` as the next version and has the other process map it. ``pause_s`` passes between
    the publish and the announcement; ``mapped`` is what the rest took, ``cpu`` of both processes."""

    def __init__(
        self, publisher: Any, mapper: Mapper, data: memoryview, pause_s: float = 0
    ) -> None:
        self._publisher, self._mapper, self._pause_s = publisher, mapper, pause_s
        self._tensor = ExportedTensor("weight", "BF16", (len(data) // 2,), data)
        self._version = 0
        self.cpu: list[float] = []
        self.mapped: list[float] = []
        for _ in range(3):  # the files that alternate, and the layout, are there from then on
            self.run()
        self.cpu.clear()
        self.mapped.clear()

    def run(self) -> float:
        """Wall seconds without the pause."""
        self._version += 1
        cpu = time.process_time() + cpu_of(self._mapper.process.pid)
        began = time.perf_counter()
        manifest = self._publisher.publish(self._version, [self._tensor])
        published = time.perf_counter() - began
        time.sleep(self._pause_s)
        began = time.perf_counter()
        self._mapper.map(
            Announcement(
                POLICY,
                self._version,
                "shm",
                self._publisher.endpoints,
                manifest.digest,
                manifest.size,
            )
        )
        self.mapped.append(time.perf_counter() - began)
        self.cpu.append(time.process_time() + cpu_of(self._mapper.process.pid) - cpu)
        self._publisher.retain(frozenset())
        return published + self.mapped[-1]


class Mapper:
    """The receiver's half of the transport in ``table``, in a process of its own."""

    def __init__(self, folder: Path, table: Mapping[str, Any]) -> None:
        order = json.dumps({"folder": str(folder), "table": table})
        self.process = subprocess.Popen(
            [sys.executable, "-m", __name__, order],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Mapper:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.process.communicate(timeout=DEADLINE_S)
        finally:
            self.process.kill()

    def map(self, announcement: Announcement) -> None:
        """Have it map a version; returns when the mapping is open and verified."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(asdict(announcement)) + "\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], DEADLINE_S)
        if not ready or not self.process.stdout.readline():
            raise TimeoutError("the receiving process did not answer")


def transport(folder: Path, table: Mapping[str, Any]) -> Transport:
    """The transport of a table, as a run has it."""
    run = RunInfo("bench", 0, 1, 0, (POLICY,), folder)
    context = ComponentContext(run, "bench", POLICY, 0, folder, "a-token")
    made: Transport = Catalog.discover().build("transport", ComponentTable(**table), context)
    return made


def map_versions(folder: Path, table: Mapping[str, Any]) -> None:
    """Map each version announced on standard input, and print a line when it is mapped."""
    held = None
    with closing(transport(folder, table).receiver()) as receiver:
        for line in sys.stdin:
            told = json.loads(line)
            told["endpoints"] = tuple(told["endpoints"])
            source = receiver.fetch(Announcement(**told), DEADLINE_S)
            with source.path.open("rb") as file:
                mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            print(len(mapping), flush=True)
            mapping.close()
            if held is not None:
                receiver.release(held)
            held = source


if __name__ == "__main__":
    _order = json.loads(sys.argv[1])
    map_versions(Path(_order["folder"]), _order["table"])
