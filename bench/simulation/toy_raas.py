"""A RaaS of a simulated run: its real control loop and client, with toys instead of engines and episodes."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

from astraflow_core.config.models import RunConfig
from astraflow_core.errors import AstraFlowError
from astraflow_core.types import Announcement, Group, Sequence, Trajectory
from astraflow_runtime.raas.episodes.episodes import TaskFailed
from astraflow_runtime.raas.service import RaasService
from astraflow_wire.groups import ReceivedGroup, encode_group
from astraflow_wire.messages import GroupPushed, Task
from bench.simulation.ledger import Ledger, SampledRow
from bench.simulation.network import FaultyNetwork, SimulatedAsyncClient

Lengths = Callable[[str, random.Random], int]
"""The length of an episode of a prompt (tokens)."""
PROMPT = 2
"""Tokens of a prompt; the first is the number of the row."""


class ToyRefresh:
    """Loads versions, each later than the one before."""

    def __init__(self, raas: str, rng: random.Random, ledger: Ledger) -> None:
        self.seen, self.serving = -1, None
        self.changed: Callable[[], None] = lambda: None
        self._raas, self._rng, self._ledger = raas, rng, ledger
        self._loading: asyncio.Task[None] | None = None
        self._digests: dict[int, str] = {}

    seen: int
    serving: int | None

    @property
    def digest(self) -> str:
        """Of the version served."""
        return "" if self.serving is None else self._digests[self.serving]

    def discard(self) -> None:
        """Forget all versions."""
        self.close()
        self.seen, self.serving, self._loading = -1, None, None
        self._digests.clear()

    def on_announced(self, announcement: Announcement) -> None:
        """A version was announced."""
        self.seen = max(self.seen, announcement.version)
        self._digests[announcement.version] = announcement.digest
        if self._loading is None or self._loading.done():
            self._loading = asyncio.create_task(self._load())

    async def _load(self) -> None:
        while self.serving is None or self.serving < self.seen:
            version = self.seen
            await asyncio.sleep(self._rng.uniform(0.05, 1.0))
            before = -1 if self.serving is None else self.serving
            self._ledger.load(self._raas, before, version, self._digests[version])
            self.serving = version
            self.changed()

    def pin(self, version: int | None) -> None:
        """Nothing is evaluated."""

    @contextmanager
    def hold(self, version: int) -> Iterator[None]:
        """Nothing is evaluated."""
        yield

    def waits(self) -> list[Any]:
        """No waits are reported."""
        return []

    def close(self) -> None:
        """The process ends."""
        if self._loading is not None:
            self._loading.cancel()


def short(prompt: str, rng: random.Random) -> int:
    """The length of an episode (tokens), of any prompt."""
    return rng.randrange(1, 4)


class ToyRunner:
    """Plays episodes that take time, ``pace`` times as long as others'; a few fail. The ledger gets each row that was
    sampled."""

    def __init__(
        self,
        raas: str,
        rng: random.Random,
        refresh: ToyRefresh,
        ledger: Ledger,
        numbers: Iterator[int],
        lengths: Lengths,
        pace: float = 1.0,
    ) -> None:
        self._pace = pace
        self.counters = SimpleNamespace()
        self._raas, self._rng, self._refresh, self._numbers = raas, rng, refresh, numbers
        self._ledger, self._lengths = ledger, lengths

    async def run(self, task: Task, ended: Callable[[], None], incarnation: int) -> bytes:
        """The body of a group."""
        if self._rng.random() < 0.02:
            raise TaskFailed("a toy failure")
        trajectories, attempt = [], next(self._ledger.attempts)
        for _ in range(task.group_size):
            trajectories.append(await self._episode(task.prompt_id, attempt))
            ended()
        group = Group(task.id, task.prompt_id, tuple(trajectories))
        return encode_group(group, self._raas, incarnation=incarnation)

    async def _episode(self, prompt: str, attempt: int) -> Trajectory:
        length = self._lengths(prompt, self._rng)
        versions, weights = [], []
        for _ in range(length):
            await asyncio.sleep(self._pace * self._rng.lognormvariate(-2.0, 1.0))
            if self._refresh.serving is None:
                raise TaskFailed("its engine has no weights")
            versions.append(self._refresh.serving)
            weights.append(self._refresh.digest)
        reward, number = float(self._rng.randrange(2)), next(self._numbers)
        self._ledger.sampled[number] = SampledRow(prompt, length, reward, tuple(weights), attempt)
        sequence = Sequence(
            "solver",
            np.array([number, *range(1, PROMPT + length)], np.int32),
            np.array([False] * PROMPT + [True] * length),
            np.array([0.0] * PROMPT + [-0.5] * length, np.float32),
            np.array([-1] * PROMPT + versions, np.int32),
        )
        return Trajectory((sequence,), rewards={"solver": reward})


class _Client(SimulatedAsyncClient):
    """Reports to the ledger which groups were accepted."""

    ledger: Ledger

    async def post_bytes(self, path: str, body: bytes, expected: Any, *, deadline_s: float) -> Any:
        history = self.ledger.history
        answer = await super().post_bytes(path, body, expected, deadline_s=deadline_s)
        if history != self.ledger.history:
            return answer  # by a dataflow whose journal is lost
        if isinstance(answer, GroupPushed) and answer.status == "accepted":
            received = ReceivedGroup(body)
            rows = tuple(received.tokens[received.offsets[:-1]].tolist())
            self.ledger.accepted[received.header.task] = rows
        return answer


class RaasProcess:
    """A RaaS from its start until it exits or is killed."""

    def __init__(
        self,
        name: str,
        start: int,
        config: RunConfig,
        network: FaultyNetwork,
        ledger: Ledger,
        rng: random.Random,
        numbers: Iterator[int],
        lengths: Lengths,
        pace: float = 1.0,
    ) -> None:
        self.client = _Client(network, name)
        self.refresh = ToyRefresh(name, rng, ledger)
        runner = ToyRunner(name, rng, self.refresh, ledger, numbers, lengths, pace)
        self.client.ledger = ledger
        refresh = self.refresh
        replicas = _Replicas(refresh)
        service = RaasService(
            name,
            config,
            self.client,
            runner,  # type: ignore[arg-type]
            {"solver": SimpleNamespace(replicas=replicas)},  # type: ignore[dict-item]
            {"solver": refresh},  # type: ignore[dict-item]
        )
        service.probes = _NoProbes()  # type: ignore[assignment]
        service.measurements = SimpleNamespace(collect=dict)  # type: ignore[assignment]
        service.dataflow._origin, service.dataflow._start = f"origin of {name}", start
        refresh.changed = service.served_changed
        self.service = service
        self._running: asyncio.Task[None] | None = None

    async def run(self) -> bool:
        """Run until it ends; whether it was asked to."""
        self._running = asyncio.create_task(self.service.run())
        stopping = asyncio.create_task(self.service.stopping.wait())
        try:
            await asyncio.wait({self._running, stopping}, return_when=asyncio.FIRST_COMPLETED)
            asked = stopping.done() and self.service.failure is None
            self._running.cancel()
            (error,) = await asyncio.gather(self._running, return_exceptions=True)
            if isinstance(error, Exception) and not isinstance(error, AstraFlowError):
                raise error  # no fault of the network, but a defect
            return asked
        finally:
            stopping.cancel()
            self.refresh.close()

    def kill(self) -> None:
        """Kill the process: it sends nothing more."""
        self.client.dead = True
        if self._running is not None:
            self._running.cancel()


class _Replicas:
    answering = 1.0

    def __init__(self, refresh: ToyRefresh) -> None:
        self._refresh = refresh

    @property
    def serving(self) -> int | None:
        return self._refresh.serving

    async def look(self, seconds: float) -> None:
        """Ask the engines."""

    def pressure(self) -> dict[str, float]:
        """The engines report no queues."""
        return {}

    def waits(self) -> list[Any]:
        return []


class _NoProbes:
    async def run(self) -> None:
        """Nothing is probed."""

    def on_announced(self, message: Any) -> None:
        """Nothing is probed."""

    def discard(self, policy: str) -> None:
        """Nothing is probed."""

    def changed(self) -> None:
        """Nothing is probed."""


def row_numbers() -> Iterator[int]:
    """A number for each row of a run."""
    return itertools.count(1)
