"""Which requests are at the server and which wait here.

At most as many are at the server as it decodes at once, and none is sent while the engine is paused: so a
request that has not begun belongs to no version yet, however long it waits.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from dataclasses import dataclass, field

from astraflow_core.types import GenerateRequest


@dataclass(eq=False)
class Flight:
    """A request on its way. ``identifier`` names it at the server; ``aborting``: its end was asked for;
    ``superseded``: because of its pinned version."""

    request: GenerateRequest
    identifier: str
    admission: asyncio.Future[bool]
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    aborting: bool = False
    superseded: bool = False


class RequestQueue:
    """Lets requests in, by priority and then in order of arrival, while it is open."""

    def __init__(self, capacity: int) -> None:
        self.running: dict[Flight, None] = {}
        self.is_open = True
        self._capacity = capacity
        self._waiting: list[tuple[int, int, Flight]] = []
        self._numbers = itertools.count()
        self._changed = asyncio.Event()
        self._busy_s = 0.0
        self._busy_since: float | None = None

    @property
    def waiting(self) -> int:
        """How many wait here."""
        return sum(not flight.admission.done() for _, _, flight in self._waiting)

    @property
    def busy_s(self) -> float:
        """Seconds in which something ran."""
        since = self._busy_since
        return self._busy_s + (0.0 if since is None else time.monotonic() - since)

    def enter(self, request: GenerateRequest, identifier: str) -> Flight:
        """A new request; its ``admission`` resolves to whether it may run (else it was ended)."""
        flight = Flight(request, identifier, asyncio.get_running_loop().create_future())
        heapq.heappush(self._waiting, (request.priority, next(self._numbers), flight))
        self._admit()
        return flight

    def leave(self, flight: Flight) -> None:
        """A request is over, whatever became of it."""
        flight.admission.cancel()
        flight.ended.set()
        self.running.pop(flight, None)
        self._update_busy()
        self._admit()

    def named(self, ids: list[str]) -> list[Flight]:
        """The requests that run under these ids; those that wait end now, without having run."""
        wanted = set(ids)
        for _, _, flight in self._waiting:
            if flight.request.id in wanted and not flight.admission.done():
                flight.admission.set_result(False)
        return [flight for flight in self.running if flight.request.id in wanted]

    def close(self) -> None:
        """Admit no request."""
        self.is_open = False
        self._update_busy()

    def open(self) -> None:
        """Let requests in again."""
        self.is_open = True
        self._update_busy()
        self._admit()

    async def drained(self) -> None:
        """Wait until nothing runs, or the desk is open again."""
        while self.running and not self.is_open:
            self._changed.clear()
            await self._changed.wait()

    def fail(self, error: Exception) -> None:
        """End all that wait with an error."""
        waiting, self._waiting = self._waiting, []
        for _, _, flight in waiting:
            if not flight.admission.done():
                flight.admission.set_exception(error)

    def _admit(self) -> None:
        while self._waiting and (self._waiting[0][2].admission.done() or self._has_room()):
            flight = heapq.heappop(self._waiting)[2]
            if not flight.admission.done():
                self.running[flight] = None
                flight.admission.set_result(True)
        self._update_busy()

    def _has_room(self) -> bool:
        return self.is_open and len(self.running) < self._capacity

    def _update_busy(self) -> None:
        self._changed.set()
        busy = bool(self.running) and self.is_open
        if busy and self._busy_since is None:
            self._busy_since = time.monotonic()
        elif not busy and self._busy_since is not None:
            self._busy_s += time.monotonic() - self._busy_since
            self._busy_since = None
