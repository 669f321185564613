"""Results that clients fetch later: bounded in number, bytes and age."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from astraflow_contrib_tinker.wire.results import Result, size_of
from astraflow_contrib_tinker.work.access import CURRENT, visible
from astraflow_core.errors import AstraFlowError, Refused

log = logging.getLogger(__name__)
Work = Callable[[], Coroutine[Any, Any, Result]]
MOST_PENDING = 16_384
MOST_PENDING_BYTES = 512 << 20
MOST_BYTES = 256 << 20
MOST_AGE_S = 1800.0
_UNNUMBERED = re.compile(r"[0-9a-f]{12}-[0-9]{1,18}")
_NUMBERED = re.compile(r"[0-9a-f]{16}:train:[0-9]{1,19}:[0-9]{1,19}")
GONE = (
    "the result is gone: it was dropped, or the server was restarted. If the model is gone too (see get_info()), "
    "continue from its last save_state with create_training_client_from_state_with_optimizer; otherwise the model includes "
    "its effect"
)
POLL_S = 20.0
"""How long a fetch waits for a result; clients give up after 45 s."""


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """``category``: ``"user"`` or ``"server"``, as clients know them."""

    error: str
    category: str


@dataclass(slots=True)
class Promise:
    """A result to come. ``queue_state`` is the reply to a client that asks earlier; ``size`` is that of the request, and
    then of the result."""

    id: str
    owner: str
    key: str
    done: asyncio.Event = field(default_factory=asyncio.Event)
    outcome: Result | FailedRequest | None = None
    queue_state: str = "active"
    size: int = 0
    finished: float = 0.0
    task: asyncio.Task[None] | None = None


class Promises:
    """All results of the server. Finished ones are dropped, the oldest first, when they have been fetched or are more or
    older than the bounds; a client that asks for one then has to repeat its request (410)."""

    def __init__(
        self,
        most_pending: int = MOST_PENDING,
        most_bytes: int = MOST_BYTES,
        age_s: float = MOST_AGE_S,
    ) -> None:
        self._most_pending, self._most_bytes, self._age_s = most_pending, most_bytes, age_s
        self._prefix, self._numbers = secrets.token_hex(6), itertools.count()
        self.keys: dict[str, str] = {}
        """Owner → the name of its key."""
        self.most_of: dict[str, int] = {}
        """Name of a key → how many of its requests may wait."""
        self._pending_of: Counter[str] = Counter()
        self._pending: dict[str, Promise] = {}
        self._finished: dict[str, Promise] = {}
        self._bytes = self._pending_bytes = 0
        self._next = 0

    def make(self, owner: str, size: int = 0, id: str | None = None) -> Promise:
        """A promise to ``owner``, a session, for a request of ``size`` bytes, with a new id if none is given; 429 if too
        many wait to be kept, so that clients slow down."""
        full = self._pending_bytes + size > MOST_PENDING_BYTES
        if len(self._pending) >= self._most_pending or full:
            raise Refused(
                429,
                f"{len(self._pending)} requests of {self._pending_bytes >> 20} MiB wait already; send more when some are "
                "done",
            )
        key = self.keys.get(owner, "")
        if CURRENT.get() and self._pending_of[key] >= self.most_of.get(key, self._most_pending):
            raise Refused(
                429,
                f"{self._pending_of[key]} requests of your key wait; send more when some are done",
            )
        if id is None:
            self._next = next(self._numbers)
            id = f"{self._prefix}-{self._next}"
        promise = Promise(id, owner, key, size=size)
        self._pending[promise.id] = promise
        self._pending_of[key] += 1
        self._pending_bytes += size
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
        self._pending_of[promise.key] -= 1
        self._pending_bytes -= promise.size
        promise.size = 256 if isinstance(outcome, FailedRequest) else size_of(outcome)
        promise.task = None
        promise.done.set()
        self._finished[promise.id] = promise
        self._bytes += promise.size
        self._tidy()

    async def fetch(self, id: str, wait_s: float = POLL_S) -> Promise:
        """The promise, finished or not yet. :class:`Refused`: 410 for one that was dropped or was of a server before this
        one, so that clients send the request again, 404 for one that they cannot send again or that was never made."""
        promise = self._pending.get(id) or self._finished.get(id)
        if promise is not None and not visible(promise.key):
            raise Refused(404, f"this server has made no request {id[:80]!r} for your key")
        if promise is None:
            prefix, _, number = id.partition("-")
            sample = _UNNUMBERED.fullmatch(id)
            if sample and (prefix != self._prefix or int(number) <= self._next):
                raise Refused(410, "the result was dropped; send the request again")
            if _NUMBERED.fullmatch(id):
                raise Refused(404, GONE)
            raise Refused(404, f"this server has made no request {id[:80]!r}")
        try:
            async with asyncio.timeout(wait_s):
                await promise.done.wait()
        except TimeoutError:
            pass
        return promise

    def cancel(self, id: str) -> None:
        """End a sample whose client has left; requests of a model are worked on in their order all the same."""
        promise = self._pending.get(id)
        if promise is None or not _UNNUMBERED.fullmatch(id) or not visible(promise.key):
            return
        if promise.task is not None:
            promise.task.cancel()
        self.finish(promise, FailedRequest("the request was cancelled by its client", "user"))

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

    def waiting_of(self, key: str) -> int:
        """The number of unfinished promises of a key."""
        return self._pending_of[key]

    @property
    def waiting(self) -> int:
        """The number of unfinished promises."""
        return len(self._pending)

    @property
    def held_bytes(self) -> int:
        """Bytes of finished results."""
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
            promise.outcome = None  # others know the promise by the number of its request
