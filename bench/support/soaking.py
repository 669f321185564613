"""A dataflow under groups of clients, for as long as wanted, and what it takes meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from astraflow_core.types import Batch
from astraflow_wire.batches import decode_batch
from astraflow_wire.messages import (
    AcknowledgeBatch,
    BatchAcknowledged,
    Done,
    GroupPushed,
    LeaseTasks,
    NextBatch,
    RaasRegistered,
    RegisterRaas,
    RegisterTrainer,
    ReleaseBatches,
    TasksLeased,
    TrainerRegistered,
    VersionAnnounced,
    decode,
    encode,
)
from bench.support.connection import Connection
from bench.support.groups import FIRST, Groups, announcement, sequence_ids
from bench.support.processes import Service, dataflow_config, started_in

LENGTH, LONG = 16, 32_768
RAAS, SIZE, BATCH, CHECKPOINT = 8, 2, 256, 3
POLICY = "solver"
DATAFLOW = "bench.support.dataflow"
WINDOWS = 20
POLL_S = 5.0
"""How long a client waits for a lease or a batch before it looks whether its phase is over."""


@dataclass
class Window:
    """Of a window: its end in groups, resident memory, open files, and the seconds of each push."""

    groups: int
    resident_mb: float
    files: int
    pushes: list[float]


@dataclass
class Soak:
    """The clients of one dataflow. ``trained`` counts how often each row came in a batch."""

    service: Service
    length: int
    version: int = 0
    pushed: int = 0
    stale: int = 0
    windows: list[Window] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._make = Groups(SIZE, self.length)
        self._trained = np.zeros(0, np.uint8)
        self._sent = np.zeros(0, np.uint8)
        self._prompts: set[str] = set()
        self._pushes: list[float] = []
        self._slow_pool, self._over = False, False
        self._updates = 0
        self._began, self._s_per_group = 0.0, 0.0

    async def run(self, groups: int, seconds: float) -> None:
        """``WINDOWS`` windows until so many groups are pushed or the time is over, no faster than ``groups`` in ``seconds``."""
        await self._begin()
        self._began, self._s_per_group = time.monotonic(), seconds / groups
        end = self._began + seconds
        async with asyncio.TaskGroup() as tasks:
            for number in range(RAAS):
                tasks.create_task(self._roll_out(f"r{number}"))
            tasks.create_task(self._train())
            for half in range(2 * WINDOWS):
                self._slow_pool = half % 2 == 1
                goal = groups * (half + 1) // (2 * WINDOWS)
                until = time.monotonic() + (end - time.monotonic()) / (2 * WINDOWS - half)
                while self.pushed < goal and time.monotonic() < until:
                    await asyncio.sleep(0.02)
                if self._slow_pool:
                    self._close_window()
            self._over = True

    def _ahead_s(self) -> float:
        """By how many seconds there are more groups than the pace has."""
        return self.pushed * self._s_per_group - (time.monotonic() - self._began)

    def _close_window(self) -> None:
        if not self._pushes and self.windows:
            return
        text = Path(f"/proc/{self.service.pid}/status").read_text()
        resident = int(text.partition("VmRSS:")[2].split()[0]) / 1024
        files = len(os.listdir(f"/proc/{self.service.pid}/fd"))
        self.windows.append(Window(self.pushed, resident, files, self._pushes))
        self._pushes = []

    async def _begin(self) -> None:
        self._trainer = await Connection.open(self.service)
        hello = RegisterTrainer(policy=POLICY, pid=1, host="bench")
        await self._trainer.send("/v1/trainers/register", hello, TrainerRegistered)
        await self._trainer.send("/v1/versions", announcement(POLICY), VersionAnnounced)

    async def _roll_out(self, name: str) -> None:
        connection = await Connection.open(self.service)
        register = RegisterRaas(
            raas=name, pid=1, host="bench", policies=[POLICY], capacity=SIZE * 16
        )
        await connection.send("/v1/raas/register", register, RaasRegistered)
        while not self._over:
            serving = {POLICY: self.version}
            ask = LeaseTasks(
                raas=name, free=SIZE * 16, wait_s=POLL_S, serving=serving, seen=serving, incarnation=FIRST,
            )  # fmt: skip
            began = time.monotonic()
            leased = await connection.send("/v1/tasks/lease", ask, TasksLeased)
            for task in leased.tasks:
                body = self._make.body(task, name, {POLICY: self.version})
                at = time.perf_counter()
                answer = decode(await connection.post("/v1/groups", body), GroupPushed)
                self._pushes.append(time.perf_counter() - at)
                self._prompts.add(task.prompt_id)
                if answer.status != "accepted":
                    assert answer.reasons == {POLICY: "stale"}, answer
                    self.stale += 1
                    continue
                self._sent = _counted(self._sent, list(sequence_ids(task.id, SIZE)))
                self.pushed += 1
            if self._slow_pool:
                await asyncio.sleep(max(time.monotonic() - began, self._ahead_s()))
        connection.close()

    async def _train(self) -> None:
        while True:
            began = time.monotonic()
            ask = NextBatch(policy=POLICY, version=self.version, wait_s=POLL_S, incarnation=FIRST)
            batch = decode_batch(await self._trainer.post("/v1/batches/next", encode(ask)))
            if not isinstance(batch, Batch):
                if self._over:
                    return
                continue
            came = batch.tokens[batch.offsets[:-1]].tolist()
            self._trained = _counted(self._trained, came)
            if not self._slow_pool:
                await asyncio.sleep(max(0.5 * (time.monotonic() - began), self._ahead_s()))
            self.version += 1
            message = announcement(POLICY, self.version)
            await self._trainer.send("/v1/versions", message, VersionAnnounced)
            done = AcknowledgeBatch(
                policy=POLICY, batch=batch.id, version=self.version, metrics={}, incarnation=FIRST
            )
            await self._trainer.send("/v1/batches/ack", done, BatchAcknowledged)
            self._updates += 1
            if self._updates % CHECKPOINT == 0:
                release = ReleaseBatches(policy=POLICY, updates=self._updates, incarnation=FIRST)
                await self._trainer.send("/v1/batches/release", release, Done)

    def figures(self) -> dict[str, float]:
        """See :mod:`bench.soak`. Rows that no batch has yet are at most one batch and what is in flight."""
        fifth = max(1, len(self.windows) // 5)
        later = self.windows[min(fifth, len(self.windows) - 2) :]
        slope = np.polyfit([w.groups for w in later], [w.resident_mb for w in later], 1)[0]
        size = max(len(self._sent), len(self._trained))
        sent, trained = (np.pad(a, (0, size - len(a))) for a in (self._sent, self._trained))
        waiting = int((sent > trained).sum())
        return {
            "reached": self.pushed,
            "distinct_prompts": len(self._prompts),
            "stale": self.stale,
            "updates": self._updates,
            "resident_after_fifth_mb": later[0].resident_mb,
            "resident_end_mb": later[-1].resident_mb,
            "growth_kb_per_1000": 1024 * 1000 * float(slope),
            "files": later[-1].files - self.windows[0].files,
            "push_p99_first_ms": _p99_ms(self.windows[fifth : 2 * fifth]),
            "push_p99_last_ms": _p99_ms(self.windows[-fifth:]),
            "waiting": waiting,
            "lost": max(0, waiting - 2 * BATCH),
            "doubled": int((trained > 1).sum()),
        }


def _counted(counts: np.ndarray, rows: list[int]) -> np.ndarray:
    """With one more for each of ``rows``, longer where that is needed."""
    if len(counts) <= (most := max(rows)):
        counts = np.concatenate([counts, np.zeros(max(most + 1, 4096), np.uint8)])
    np.add.at(counts, rows, 1)
    return counts


def _p99_ms(windows: list[Window]) -> float:
    return 1e3 * float(np.quantile([each for window in windows for each in window.pushes], 0.99))


async def soaked(
    groups: int, length: int, seconds: float, data: Sequence[Mapping[str, str]] = ()
) -> dict[str, float]:
    """Groups of rows of ``length`` tokens, and the restart after them. ``data``: data policies."""
    config = dataflow_config(
        [POLICY],
        policy={"batch_sequences": BATCH, "data": list(data)},
        run={"max_staleness": 1, "group_size": SIZE},
        prompts={"use": "bench.support.parts:ManyPrompts", "shuffle": False},
        checkpoint={"every": CHECKPOINT},
    ).model_dump_json()
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        with started_in(Path(folder), DATAFLOW, config) as service:
            soak = Soak(service, length)
            await soak.run(groups, seconds)
            wall = time.monotonic() - began
            os.kill(service.pid, signal.SIGKILL)
        size = sum(file.stat().st_size for file in Path(folder, "run", "journal").rglob("*"))
        (Path(folder) / "run" / "dataflow.json").unlink()
        began = time.monotonic()
        with started_in(Path(folder), DATAFLOW, config):
            restart = time.monotonic() - began
    return {
        **soak.figures(),
        "wall_s": wall,
        "groups_per_s": soak.pushed / wall,
        "journal_mb": size / 1e6,
        "restart_s": restart,
    }
