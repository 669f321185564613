"""The requests of one model, in the order of their numbers, each once."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict

from astraflow_contrib_tinker.work.futures import FailedRequest, Promise, Promises, Work
from astraflow_core.errors import Refused

MOST_REMEMBERED = 4096
MOST_AHEAD = 4096
GAP_S = 120.0
"""How long requests wait for one with a lower number that has not come."""


class Ordered:
    """A client numbers the requests of a model 1, 2, 3 …, sends them in any order, and repeats one that it has heard nothing
    of. They are worked on by number; a repeated one gets the promise that was made for it."""

    def __init__(self, promises: Promises, owner: str, gap_s: float = GAP_S) -> None:
        self._promises, self._owner, self._gap_s = promises, owner, gap_s
        self._next = 1
        self._made: OrderedDict[int, tuple[bytes, Promise]] = OrderedDict()
        self._waiting: dict[int, tuple[Promise, Work]] = {}
        self._runner: asyncio.Task[None] | None = None
        self._arrived = asyncio.Event()

    def put(self, number: int | None, body: bytes, work: Work) -> Promise:
        """The promise for a request; ``body`` is what was sent. :class:`Refused` for a number that is over, or was
        given to another request."""
        digest = hashlib.blake2b(body, digest_size=16).digest()
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
        promise = self._promises.make(self._owner)
        self._made[number] = digest, promise
        while len(self._made) > MOST_REMEMBERED:
            self._made.popitem(last=False)
        self._waiting[number] = promise, work
        if number > self._next:
            promise.queue_state = "paused_capacity"
        self._arrived.set()
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run())
        return promise

    def close(self) -> None:
        """Work on nothing any more."""
        if self._runner is not None:
            self._runner.cancel()

    async def _run(self) -> None:
        while self._waiting:
            if self._next not in self._waiting:
                await self._lower_number()
                continue
            promise, work = self._waiting.pop(self._next)
            promise.queue_state = "active"
            self._next += 1
            self._promises.start(promise, work)
            await promise.done.wait()

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
                self._fail_waiting()
                return

    def _fail_waiting(self) -> None:
        told = (
            f"request {self._next} of this model did not come within {self._gap_s:.0f} s; this one has a higher number, "
            "and requests are worked on in their order"
        )
        waiting, self._waiting = self._waiting, {}
        self._next = max(waiting) + 1
        for promise, _ in waiting.values():
            self._promises.finish(promise, FailedRequest(told, "user"))
