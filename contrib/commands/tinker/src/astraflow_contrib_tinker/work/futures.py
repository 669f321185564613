"""Results that clients fetch later: bounded in number, bytes and age."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from astraflow_contrib_tinker.wire.results import Result, size_of
from astraflow_core.errors import AstraFlowError, Refused

log = logging.getLogger(__name__)
Work = Callable[[], Coroutine[Any, Any, Result]]
MOST_PENDING = 16_384
MOST_BYTES = 256 << 20
MOST_AGE_S = 1800.0
POLL_S = 20.0
"""How long a fetch waits for a result; clients give up after 45 s."""


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """``category``: ``"user"`` or ``"server"``, as clients know them."""

    error: str
    category: str


@dataclass(slots=True)
class Promise:
    """A result to come. ``queue_state`` is what a client is told that asks before."""

    id: str
    owner: str
    done: asyncio.Event = field(default_factory=asyncio.Event)
    outcome: Result | FailedRequest | None = None
    queue_state: str = "active"
    size: int = 0
    finished: float = 0.0
    task: asyncio.Task[None] | None = None


class Promises:
    """All results of the server. Finished ones are dropped, the oldest first, when they have been fetched or are more or
    older than the bounds; a client that asks for one then is told to send its request again (410)."""

    def __init__(
        self,
        most_pending: int = MOST_PENDING,
        most_bytes: int = MOST_BYTES,
        age_s: float = MOST_AGE_S,
    ) -> None:
        self._most_pending, self._most_bytes, self._age_s = most_pending, most_bytes, age_s
        self._prefix, self._numbers = secrets.token_hex(6), itertools.count()
        self._pending: dict[str, Promise] = {}
        self._finished: dict[str, Promise] = {}
        self._bytes = 0
        self._next = 0

    def make(self, owner: str) -> Promise:
        """A promise to ``owner``, a session; 429 if too many wait to be kept, so that clients slow down."""
        if len(self._pending) >= self._most_pending:
            raise Refused(
                429, f"{len(self._pending)} requests wait already; send more when some are done"
            )
        self._next = next(self._numbers)
        promise = Promise(f"{self._prefix}-{self._next}", owner)
        self._pending[promise.id] = promise
        return promise

    def start(self, promise: Promise, work: Work) -> None:
        """Keep the promise by ``work``; what goes wrong becomes its outcome."""
        promise.task = asyncio.create_task(self._keep(promise, work))

    async def _keep(self, promise: Promise, work: Work) -> None:
        try:
            self.finish(promise, await work())
        except asyncio.CancelledError:
            self.finish(
                promise, FailedRequest("the request was cancelled: its session has ended", "user")
            )
            raise
        except (Refused, ValueError) as error:
            self.finish(promise, FailedRequest(str(error), "user"))
        except AstraFlowError as error:
            self.finish(promise, FailedRequest(str(error), "server"))
        except Exception as error:
            log.exception("a request failed")
            told = f"the server failed: {type(error).__name__}: {error}"
            self.finish(promise, FailedRequest(told, "server"))

    def finish(self, promise: Promise, outcome: Result | FailedRequest) -> None:
        """The promise has this outcome."""
        if self._pending.pop(promise.id, None) is None:
            return
        promise.outcome, promise.finished = outcome, time.monotonic()
        promise.size = 256 if isinstance(outcome, FailedRequest) else size_of(outcome)
        promise.task = None
        promise.done.set()
        self._finished[promise.id] = promise
        self._bytes += promise.size
        self._tidy()

    async def fetch(self, id: str, wait_s: float = POLL_S) -> Promise:
        """The promise, finished or not yet. :class:`Refused`: 410 for one that was dropped, 404 for one that this server
        never made."""
        promise = self._pending.get(id) or self._finished.get(id)
        if promise is None:
            prefix, _, number = id.partition("-")
            if prefix == self._prefix and number.isdecimal() and int(number[:18]) <= self._next:
                raise Refused(410, "the result was dropped; send the request again")
            raise Refused(404, f"this server has made no request {id[:80]!r}")
        try:
            async with asyncio.timeout(wait_s):
                await promise.done.wait()
        except TimeoutError:
            pass
        return promise

    def forget(self, owner: str) -> None:
        """Cancel and drop all of ``owner``."""
        for promise in [p for p in self._pending.values() if p.owner == owner]:
            if promise.task is not None:
                promise.task.cancel()
            self.finish(
                promise, FailedRequest("the request was cancelled: its session has ended", "user")
            )
        for promise in [p for p in self._finished.values() if p.owner == owner]:
            self._drop(promise)

    @property
    def waiting(self) -> int:
        """Promises that are not kept yet."""
        return len(self._pending)

    @property
    def held_bytes(self) -> int:
        """Of finished results."""
        return self._bytes

    def _tidy(self) -> None:
        oldest = time.monotonic() - self._age_s
        for promise in list(self._finished.values()):
            many = self._bytes > self._most_bytes or len(self._finished) > self._most_pending
            if not many and promise.finished >= oldest:
                return
            self._drop(promise)

    def _drop(self, promise: Promise) -> None:
        if self._finished.pop(promise.id, None) is not None:
            self._bytes -= promise.size
