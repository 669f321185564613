"""Colocated engines, which share their devices with a trainer and sleep while it works."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol

from astraflow_core.errors import AstraFlowError, DeadlineExceeded, UserError
from astraflow_engine_host.protocol import HostGone
from astraflow_runtime.device_turn import SharedDeviceLock
from astraflow_runtime.raas.engines.replica import Replica
from astraflow_wire.messages import Wait

log = logging.getLogger("astraflow.raas")
LOOK_S = 0.05
LEVEL = 1
"""Weights are kept in main memory: an evaluation or the next tasks may need the version that is loaded."""


class Devices(Protocol):
    """Whether and when engines may use their devices."""

    @property
    def yielding(self) -> bool:
        """Whether no further work should be accepted."""

    def use(self) -> contextlib.AbstractAsyncContextManager[None]:
        """A context in which the devices may be used; entering it waits for them."""

    def wait(self) -> Wait | None:
        """The current wait of the engines."""


class OwnDevices:
    """Devices that no other process uses."""

    yielding = False

    @contextlib.asynccontextmanager
    async def use(self) -> AsyncIterator[None]:
        """Available at once."""
        yield

    def wait(self) -> None:
        """None: the engines never wait for devices."""
        return


OWN_DEVICES = OwnDevices()


class SharedDevices:
    """Acquires the devices for ``replicas`` and wakes them; puts them to sleep and releases the
    devices once a trainer wants them and no work is in flight. ``changed`` is called after they
    fell asleep or woke. ``deadline_s`` is the longest that a trainer may keep the devices and that
    an engine may take to sleep or wake."""

    def __init__(self, name: str, turn: SharedDeviceLock, deadline_s: float) -> None:
        self.changed: Callable[[], None] = lambda: None
        self.replicas: Sequence[Replica] = ()
        self._name, self._turn, self._deadline_s = name, turn, deadline_s
        self._users = 0
        self._awake = asyncio.Event()
        self._asleep_since: float | None = None

    @property
    def yielding(self) -> bool:
        """Whether a trainer has or wants the devices."""
        return not self._awake.is_set() or self._turn.exclusive_pending()

    @contextlib.asynccontextmanager
    async def use(self) -> AsyncIterator[None]:
        """Enter once the engines have the devices, which they keep within the context."""
        while not self._awake.is_set():
            await self._awake.wait()
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1

    def wait(self) -> Wait | None:
        """The wait for the trainer that has the devices."""
        if self._asleep_since is None:
            return None
        waited = time.monotonic() - self._asleep_since
        return Wait(
            who="engines",
            for_whom=self._turn.holders(),
            what="the devices that they share",
            since_s=waited,
            until_s=max(0.0, self._deadline_s - waited),
        )

    async def run(self) -> None:
        """Acquire and release the devices until cancelled."""
        try:
            while True:
                await self._acquire_devices()
                while self._users or not self._turn.exclusive_pending():
                    await asyncio.sleep(LOOK_S)
                self._awake.clear()
                await self._to_all(lambda replica: replica.fall_asleep(LEVEL, self._deadline_s))
                self.changed()
                self._turn.release()
        finally:
            self._turn.release()

    async def _acquire_devices(self) -> None:
        self._asleep_since = time.monotonic()
        try:
            async with asyncio.timeout(self._deadline_s):
                while not self._turn.acquire():
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise DeadlineExceeded(
                self._turn.holders(), f"the devices that {self._name} shares", self._deadline_s
            ) from None
        self._asleep_since = None
        await self._to_all(lambda replica: replica.wake(self._deadline_s), asleep=True)
        self._awake.set()
        self.changed()

    async def _to_all(
        self, call: Callable[[Replica], Awaitable[None]], asleep: bool = False
    ) -> None:
        """Call all replicas with a host that are ``asleep``, or awake."""
        meant = [r for r in self.replicas if r.engine.host is not None and r.asleep == asleep]
        await asyncio.gather(*(self._obeyed(call, replica) for replica in meant))

    async def _obeyed(self, call: Callable[[Replica], Awaitable[None]], replica: Replica) -> None:
        """Kill the host of a replica that failed, which frees its share of the devices."""
        host = replica.engine.running()
        try:
            await call(replica)
        except UserError:
            raise
        except HostGone:
            log.info("the host of %s exited during its turn on the devices", replica.engine.label)
        except (AstraFlowError, ValueError) as error:
            log.warning("%s did not sleep or wake: %s", replica.engine.label, error)
            host.kill("did not sleep or wake at its turn")
