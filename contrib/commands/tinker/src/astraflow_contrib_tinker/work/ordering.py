"""The requests of one model, in the order of their numbers, each once."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping

from astraflow_contrib_tinker.wire.results import Result
from astraflow_contrib_tinker.work.futures import FailedRequest, Promise, Promises, Work
from astraflow_core.errors import Refused

MOST_REMEMBERED = 4096
MOST_AHEAD = 4096
GAP_S = 120.0
"""How long requests wait for one with a lower number that has not come."""
Watch = Callable[[int, Result | FailedRequest | None], Awaitable[None]]


def digest_of(*parts: bytes) -> bytes:
    """The key by which a repeated request is recognised."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.digest()


class Ordered:
    """A client numbers the requests of a model 1, 2, 3 …, sends them in any order, and repeats one without a reply. They are worked on by number, once :meth:`start` was called; a repeated one gets the promise that was made for it.
    ``watch`` is called with each number and its outcome, and the next request waits for it. ``name`` begins the promises' ids."""

    def __init__(
        self,
        promises: Promises,
        owner: str,
        gap_s: float = GAP_S,
        name: str | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._promises, self._owner, self._gap_s = promises, owner, gap_s
        self._name, self._watch = owner if name is None else name, watch
        self._next = 1
        self._made: OrderedDict[int, tuple[bytes, Promise]] = OrderedDict()
        self._waiting: dict[int, tuple[Promise, Work]] = {}
        self._runner: asyncio.Task[None] | None = None
        self._arrived, self._started = asyncio.Event(), asyncio.Event()

    def start(self) -> None:
        """Work on requests from now on."""
        self._started.set()

    def put(self, number: int | None, digest: bytes, work: Work, size: int = 0) -> Promise:
        """The promise for a request of ``size`` bytes; ``digest`` is :func:`digest_of` what was sent. :class:`Refused` for a
        number that is over, or was given to another request."""
        if number is None or number < 1:
            raise Refused(400, f"seq_id is {number}; requests of a model are numbered from 1")
        if (known := self._made.get(number)) is not None:
            if known[0] != digest:
                raise Refused(400, f"seq_id {number} was given to another request of this model")
            return known[1]
        if number < self._next:
            raise Refused(
                400, f"seq_id {number} is stale: the next request of this model has {self._next}"
            )
        if number >= self._next + MOST_AHEAD:
            raise Refused(
                429, f"seq_id {number} is far ahead of {self._next}, which is due; wait for results"
            )
        promise = self._promises.make(self._owner, size, f"{self._name}:{number}")
        self._remember(number, digest, promise)
        self._waiting[number] = promise, work
        if number > self._next:
            promise.queue_state = "paused_capacity"
        self._arrived.set()
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run())
        return promise

    def resume(
        self, next: int, results: Mapping[int, tuple[bytes, Result | FailedRequest]]
    ) -> None:
        """Go on with the number ``next``; ``results`` are of lower ones, with the digests of their requests."""
        self._next = next
        for number, (digest, outcome) in sorted(results.items()):
            promise = self._promises.make(self._owner, id=f"{self._name}:{number}")
            self._promises.finish(promise, outcome)
            self._remember(number, digest, promise)

    def results(self, first: int, last: int) -> dict[int, tuple[bytes, Result | FailedRequest]]:
        """The results of these numbers that are held, as :meth:`resume` takes them."""
        return {
            number: (digest, promise.outcome)
            for number, (digest, promise) in self._made.items()
            if first <= number <= last and promise.outcome is not None
        }

    def close(self) -> None:
        """Process no further request."""
        if self._runner is not None:
            self._runner.cancel()

    def fail(self, outcome: FailedRequest) -> None:
        """Process no further request; waiting ones get this outcome."""
        self.close()
        for promise, _ in self._waiting.values():
            self._promises.finish(promise, outcome)

    def _remember(self, number: int, digest: bytes, promise: Promise) -> None:
        self._made[number] = digest, promise
        while len(self._made) > MOST_REMEMBERED:
            self._made.popitem(last=False)

    async def _run(self) -> None:
        await self._started.wait()
        while self._waiting:
            number = self._next
            if number not in self._waiting:
                await self._lower_number()
                continue
            promise, work = self._waiting.pop(number)
            promise.queue_state = "active"
            self._next += 1
            self._promises.start(promise, work)
            await promise.done.wait()
            if self._watch is not None:
                await self._watch(number, promise.outcome)

    async def _lower_number(self) -> None:
        """Wait for the one that is due; without it those behind it fail, since their order matters."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._gap_s
        while self._next not in self._waiting:
            self._arrived.clear()
            try:
                async with asyncio.timeout_at(until):
                    await self._arrived.wait()
            except TimeoutError:
                await self._fail_waiting()
                return

    async def _fail_waiting(self) -> None:
        told = (
            f"request {self._next} of this model did not come within {self._gap_s:.0f} s; this one has a higher number, "
            "and requests are worked on in their order"
        )
        waiting, self._waiting = self._waiting, {}
        failed, first = FailedRequest(told, "server"), self._next
        self._next = max(waiting) + 1
        for promise, _ in waiting.values():
            self._promises.finish(promise, failed)
        if self._watch is not None:
            for number in range(first, max(waiting) + 1):
                await self._watch(number, failed)
