"""A network in memory between clients and the dataflow, with faults."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp

from astraflow_wire.http.client import AsyncClient, SyncClient
from bench.simulation.virtual_loop import wait_for

Answer = tuple[int, bytes]


@dataclass(frozen=True)
class FaultRates:
    """How likely each fault is, of a message or (crashes and partitions) within ``every_s`` virtual seconds. ``kinds``:
    who is killed, or cut off (``cut``), each as often as it is named; ``copy``: journal and checkpoints are copied, and
    the next time the run continues from that copy, without notice to RaaS and network."""

    slow: float = 0.8
    lost: float = 0.06
    lost_reply: float = 0.06
    doubled: float = 0.4
    every_s: float = 12.0
    partition_s: float = 5.0
    kinds: tuple[str, ...] = ("raas", "raas", "trainer", "dataflow", "cut", "cut")


class Host(Protocol):
    """A server that answers requests; ``None`` while it is down."""

    def handle(
        self, method: str, path: str, body: bytes | None
    ) -> Coroutine[Any, Any, Answer] | None:
        """The answer to a request."""


class Killed(BaseException):
    """The process that sends this no longer exists."""


class FaultyNetwork:
    """Carries requests of ``who``. ``noted`` is called for each message that arrives, and for its reply. ``counts``:
    faults by kind."""

    def __init__(
        self, rng: random.Random, rates: FaultRates, host: Host, noted: Callable[..., None]
    ) -> None:
        self._rng, self._rates, self._host, self._noted = rng, rates, host, noted
        self.counts: Counter[str] = Counter()
        self.cut_until: dict[str, float] = {}
        self._sent: Counter[str] = Counter()
        self._arrived: dict[str, int] = {}
        self._copies: set[asyncio.Task[None]] = set()

    async def request(
        self, who: str, method: str, path: str, body: bytes | None, timeout_s: float
    ) -> Answer:
        """The answer; :class:`TimeoutError`, or :class:`ConnectionResetError`."""
        async with asyncio.timeout(timeout_s):
            return await self._carry(who, method, path, body)

    async def _carry(self, who: str, method: str, path: str, body: bytes | None) -> Answer:
        self._sent[who] += 1
        number = self._sent[who]
        await self._travel(who, self._rates.lost, "lost")
        if number < self._arrived.get(who, 0):
            self.counts["reordered"] += 1
        self._arrived[who] = max(number, self._arrived.get(who, 0))
        if self._rng.random() < self._rates.doubled:
            self.counts["doubled"] += 1
            copy = asyncio.create_task(self._copy(who, method, path, body))
            self._copies.add(copy)
            copy.add_done_callback(self._copies.discard)
        answer = await self._handled(who, method, path, body)
        await self._travel(who, self._rates.lost_reply, "lost_reply")
        return answer

    async def _copy(self, who: str, method: str, path: str, body: bytes | None) -> None:
        await asyncio.sleep(self._rng.uniform(0.0, 3.0))
        try:
            await self._handled(who, method, path, body)
        except ConnectionResetError:
            return  # the reply to the duplicate is dropped

    async def _handled(self, who: str, method: str, path: str, body: bytes | None) -> Answer:
        handling = self._host.handle(method, path, body)
        if handling is None:
            raise ConnectionResetError("the dataflow is down")
        status, content = await handling
        self._noted(who, path, status)
        return status, content

    async def _travel(self, who: str, lost: float, kind: str) -> None:
        """Deliver one message, after its delay or not at all."""
        rng, now = self._rng, asyncio.get_running_loop().time()
        delay_s = rng.expovariate(50.0)
        if rng.random() < self._rates.slow:
            self.counts["slow"] += 1
            delay_s += rng.uniform(0.2, 2.0)
        gone = rng.random() < lost
        if self.cut_until.get(who, 0.0) > now:
            self.counts["partitioned"] += 1
            gone = True
        elif gone:
            self.counts[kind] += 1
        await asyncio.sleep(delay_s)
        if gone:
            if rng.random() < 0.5:
                raise ConnectionResetError("the connection was reset")
            await asyncio.Event().wait()  # until the caller's deadline


class SimulatedAsyncClient(AsyncClient):
    """The client of a RaaS over the network in memory. ``dead``: its process was killed."""

    def __init__(self, network: FaultyNetwork, who: str) -> None:
        super().__init__("http://simulated", "")
        self.dead = False
        self._network, self._who = network, who

    async def _request(
        self, method: str, path: str, body: bytes | None, timeout_s: float
    ) -> Answer:
        if self.dead:
            raise Killed
        try:
            return await self._network.request(self._who, method, path, body, timeout_s)
        except ConnectionResetError as error:
            raise aiohttp.ClientConnectionError(str(error)) from error


class SimulatedSyncClient(SyncClient):
    """The client of a trainer over the network in memory."""

    def __init__(self, network: FaultyNetwork, who: str) -> None:
        super().__init__("http://simulated", "", waits_for_room=True)
        self._network, self._who = network, who

    def _request(self, method: str, path: str, body: bytes | None, timeout_s: float) -> Answer:
        return wait_for(self._network.request(self._who, method, path, body, timeout_s))

    def _pause(self, seconds: float) -> None:
        wait_for(asyncio.sleep(seconds))
