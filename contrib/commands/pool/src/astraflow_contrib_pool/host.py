"""A host of a pool: starts and ends the RaaS that the pool assigns, sets how many episodes each may run, and reports."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from astraflow_contrib_pool.messages import (
    TOKENS_PER_PLACE_S,
    HostRenewed,
    LeaveHost,
    Remaining,
    RenewHost,
    SeatOrder,
)
from astraflow_contrib_pool.raas_process import Folder, RaasProcess, environment_of_host
from astraflow_contrib_pool.shared_engines import MODELS, SharedEngines
from astraflow_core.config.environments import cache_folder
from astraflow_core.errors import DeadlineExceeded, Refused, RunFailed, UserError
from astraflow_runtime.launch.local.threads import usable_cores
from astraflow_wire.host.active_clock import active_time
from astraflow_wire.host.private_folder import remove_orphans
from astraflow_wire.host.sockets import remove_orphaned_sockets, socket_folder
from astraflow_wire.http.client import SyncClient
from astraflow_wire.http.tls import RunTls
from astraflow_wire.messages import Message

log = logging.getLogger("astraflow.pool")
T = TypeVar("T")
_CALL_S = 5.0
_FIRST_CALL_S = 1.0
_LEAVE_S = 5.0
GIVE_UP_S = 600.0
"""How long a pool that does not answer is tried before the host gives up."""

SAY_S = 30.0
"""How often a host says that it waits for the pool."""


class PoolHost:
    """This host, named ``name`` in the pool at ``url``. ``slots``: concurrent RaaS; ``places``: concurrent episodes;
    ``share_engines``: runs that train adapters of one model have one engine."""

    def __init__(
        self,
        url: str,
        token: str,
        name: str,
        slots: int,
        places: int,
        tls: RunTls | None = None,
        share_engines: bool = False,
    ) -> None:
        self.name, self.slots, self.places = name, slots, places
        self.stopping = asyncio.Event()
        self._id = secrets.token_hex(8)
        self._client = SyncClient(url, token, tls=tls)
        self._seats: dict[tuple[str, str, int], RaasProcess] = {}
        self._changed = asyncio.Event()
        self._threads = max(1, usable_cores() // slots)
        self._every_s, self._lease_s = 0.5, 15.0
        # A RaaS that does not answer blocks a separate thread.
        self._workers = ThreadPoolExecutor(2 * slots + 4, "raas-of-pool")
        self._calls = ThreadPoolExecutor(1, "pool")
        self._shared: SharedEngines | None = None
        if share_engines:
            self._shared = SharedEngines(places, slots, environment_of_host(), self._in_thread)
        self._releasing = set[asyncio.Task[None]]()
        self._joined = False
        self._said_at: float | None = None

    async def run(self) -> None:
        """Serve the pool until it says that the host is to leave, or ``stopping`` is set. Raises :class:`UserError` if the pool
        refuses the host, and :class:`RunFailed` if it does not answer for :data:`GIVE_UP_S`."""
        remove_orphaned_sockets()
        await asyncio.to_thread(remove_orphans, cache_folder(), MODELS)
        folder: Folder = socket_folder()
        answered = active_time()
        try:
            while not self.stopping.is_set():
                self._changed.clear()
                try:
                    reply = await self._renew()
                    answered = active_time()
                    if reply.stop:
                        log.info("host %s was drained and leaves", self.name)
                        break
                    self._apply(reply, folder)
                except DeadlineExceeded as error:
                    silent = active_time() - answered
                    self._say_waiting(error)
                    if silent >= self._lease_s:  # the pool has given these RaaS up
                        await self._end_all()
                    if silent >= GIVE_UP_S:
                        raise RunFailed(
                            f"the pool was silent for {silent:.0f} s: {error}"
                        ) from error
                await self._pause()
            await self._end_all()
            if self._joined:
                await self._leave()
        except Refused as error:
            raise UserError(
                f"the pool does not take host {self.name!r}: {error} ({error.status})"
            ) from error
        finally:
            for seat in self._seats.values():
                seat.kill()
            if self._shared is not None:
                await asyncio.gather(*self._releasing, self._shared.close())
            folder.close()
            self._workers.shutdown(wait=False, cancel_futures=True)
            self._calls.shutdown(wait=False, cancel_futures=True)
            self._client.close()

    async def _renew(self) -> HostRenewed:
        seats = dict(self._seats)
        message = RenewHost(
            host=self.name,
            id=self._id,
            slots=self.slots,
            places=self.places,
            seats=[seat.report() for seat in seats.values()],
        )
        told = [
            key for key, report in zip(seats, message.seats, strict=True) if report.state == "ended"
        ]
        deadline_s = _CALL_S if self._joined else _FIRST_CALL_S
        reply = await self._call("/v1/hosts/renew", message, HostRenewed, deadline_s)
        for key in told:
            del self._seats[key]
            if self._shared is not None:
                releasing = asyncio.create_task(self._shared.release(key))
                self._releasing.add(releasing)
                releasing.add_done_callback(self._releasing.discard)
        if not self._joined or self._said_at is not None:
            what = (self.name, self._client.base_url, self.slots, self.places)
            log.info("host %s joins %s with %d slots and %d places", *what)
        self._joined, self._said_at = True, None
        self._every_s, self._lease_s = reply.every_s, reply.lease_s
        return reply

    def _apply(self, reply: HostRenewed, folder: Folder) -> None:
        orders = {(order.run, order.raas, order.start): order for order in reply.seats}
        for key, seat in self._seats.items():
            if key in orders:
                seat.grant(orders[key].places)
            else:
                seat.stop()
        for key, order in orders.items():
            if key not in self._seats and order.environment:
                self._seats[key] = self._begin(order, folder)

    def _begin(self, order: SeatOrder, folder: Folder) -> RaasProcess:
        log.info("starting %s of run %s", order.raas, order.run)
        tokens_s = TOKENS_PER_PLACE_S * self.places
        attach = None
        if self._shared is not None:
            attach = partial(self._shared.attach, (order.run, order.raas, order.start), order.run)
        return RaasProcess(
            order, folder, self._threads, tokens_s, self._in_thread, self._changed.set, attach
        )

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._workers, call)

    async def _call(self, path: str, message: Message, answer: type[T], deadline_s: float) -> T:
        """Ask the pool, in a thread that nothing else holds up."""
        call = partial(self._client.post, path, message, answer, deadline_s=deadline_s)
        return await asyncio.get_running_loop().run_in_executor(self._calls, call)

    def _say_waiting(self, error: DeadlineExceeded) -> None:
        now = active_time()
        if self._said_at is None or now - self._said_at >= SAY_S:
            self._said_at = now
            log.warning("waiting for the pool at %s: %s", self._client.base_url, error.what)

    async def _pause(self) -> None:
        """Wait until the next report is due: at once if a RaaS started or ended, or if this host shall stop."""
        waits = [asyncio.ensure_future(e.wait()) for e in (self.stopping, self._changed)]
        try:
            await asyncio.wait(waits, timeout=self._every_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _end_all(self) -> None:
        for seat in self._seats.values():
            seat.stop()
        await asyncio.gather(*(seat.ended() for seat in self._seats.values()))

    async def _leave(self) -> None:
        message = LeaveHost(host=self.name, id=self._id)
        try:
            await self._call("/v1/hosts/leave", message, Remaining, _LEAVE_S)
        except (DeadlineExceeded, Refused) as error:
            log.info(
                "the departure of host %s could not be reported to the pool: %s", self.name, error
            )


def host_name() -> str:
    """The name of this host in a pool by default."""
    return os.uname().nodename.partition(".")[0] or "host"
