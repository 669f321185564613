"""Keeps one replica of an engine at the right version: pause, load, resume."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from astraflow_core.errors import AstraFlowError, DeadlineExceeded, WeightsError
from astraflow_core.protocols.engine import PauseMode
from astraflow_engine_host.protocol import EngineError, HostGone
from astraflow_engine_host.spec import part_name
from astraflow_runtime.raas.engines.colocation import Devices
from astraflow_runtime.raas.engines.host_client import HostClient
from astraflow_runtime.raas.engines.host_process import EngineHostProcess
from astraflow_runtime.raas.engines.supervised_engine import SupervisedEngine
from astraflow_runtime.raas.engines.version_cache import VersionCache
from astraflow_wire.host.disk import LONGEST_WAIT_S, says_full
from astraflow_wire.messages import Wait

log = logging.getLogger("astraflow.raas")
LONGEST_PAUSE_S = 10.0


@dataclass
class SwapTimes:
    """The time of all swaps of a replica, and their number."""

    pause_s: float = 0.0
    load_s: float = 0.0
    resume_s: float = 0.0
    swaps: int = 0
    failures: int = 0


class ReplicaRefresh:
    """Loads versions from ``cache`` into ``engine``. Versions only increase, except to a version
    that is pinned or held: an evaluation whose host died may continue on a replica that already
    serves the newest version.

    ``before_swap`` is awaited before each swap, which happens while ``devices`` may be used. ``drain_s`` is the longest
    that a pause may take (mode ``wait`` drains requests), ``deadline_s`` the longest for a fetch or a load.
    """

    def __init__(
        self,
        engine: SupervisedEngine,
        cache: VersionCache,
        mode: PauseMode,
        deadline_s: float,
        drain_s: float,
        devices: Devices,
    ) -> None:
        self.engine = engine
        self._devices = devices
        self.times = SwapTimes()
        self.served_changed: Callable[[], None] = lambda: None
        self.before_swap: Callable[[], Awaitable[None]] = _nothing
        self.trouble, self._full = "", False
        self._failed: int | None = None
        self._cache, self._mode = cache, mode
        self._deadline_s, self._drain_s = deadline_s, drain_s
        self._loaded: tuple[EngineHostProcess, int] | None = None
        self._asked: tuple[EngineHostProcess, int] | None = None
        self._history = 0
        self._wake = asyncio.Event()
        self._activity: tuple[str, str, float, float] | None = None

    @property
    def serving(self) -> int | None:
        """The version that the running host serves; ``None`` before its first and after its death."""
        if self._loaded is None or self._loaded[0] is not self.engine.host:
            return None
        return self._loaded[1]

    def wake(self) -> None:
        """Something changed: check again which version to serve."""
        self._wake.set()

    def discard(self) -> None:
        """Serve nothing until the next version. The host is killed: its engine may keep results by the
        number of a version, which another will have.
        """
        if self._loaded is not None and self._loaded[0] is self.engine.host:
            self._loaded[0].kill("had weights that the run does not have")
        self._loaded = self._asked = None

    def wait(self) -> Wait | None:
        """The current wait of this replica."""
        if self._activity is None:
            return None
        target, what, since, stopped_before_s = self._activity
        waited = time.monotonic() - since
        stopped_s = self.engine.stopped_s - stopped_before_s
        text = f"{what}; last error: {self.trouble}" if self.trouble else what
        return Wait(
            who=f"weight refresh of policy {part_name(self.engine.policy, self.engine.number)}",
            for_whom=target,
            what=text,
            since_s=waited,
            until_s=max(
                0.0, (LONGEST_WAIT_S if self._full else self._deadline_s) + stopped_s - waited
            ),
        )

    async def run(self) -> None:
        """Refresh until cancelled."""
        failures = 0
        while True:
            self._wake.clear()
            if self.serving is not None and self._target() is not None:
                self._doing(self.engine.label, f"the end of work with version {self.serving}")
                await self.before_swap()
            target = self._target()
            if target is None:
                self._idle()
                await self._wake.wait()
                continue
            try:
                await self._fetch(target)
            except HostGone:
                # The supervisor notices it too and starts a new host, which wakes this task.
                await self._wake.wait()
            except (AstraFlowError, ValueError, OSError) as error:
                failures += 1
                self.times.failures += 1
                before, self.trouble = self.trouble, f"version {target}: {error}"
                self._full = says_full(error)
                overtaken = self._target() not in (None, target)
                first, self._failed = self._failed != target, target
                told = self._full and before == self.trouble
                log.log(_failure_level(overtaken, first or told), "%s", self._failure())
                if not overtaken:
                    await self._back_off(failures)
            else:
                failures = 0

    def _failure(self) -> str:
        stays = "has no version yet" if self.serving is None else f"stays at {self.serving}"
        return f"{self.engine.label} {stays}: {self.trouble}"

    def _idle(self) -> None:
        pinned = self._cache.pinned
        if self.engine.host is None:
            self._doing("the engine host", "its start")
        elif self.serving is None:
            self._doing("the dataflow", "the announcement of a first version")
        elif pinned is not None and pinned != self.serving:
            self._doing("the dataflow", f"the announcement of pinned version {pinned}")
        else:
            self._activity = None

    async def _back_off(self, failures: int) -> None:
        pause = min(0.25 * 2 ** min(failures, 10), LONGEST_PAUSE_S)
        self._doing("a retry", f"a version that can be loaded, in {pause:.1f} s")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._wake.wait()

    def _doing(self, target: str, what: str) -> None:
        if self._activity is None or self._activity[:2] != (target, what):
            self._activity = (target, what, time.monotonic(), self.engine.stopped_s)

    def _target(self) -> int | None:
        """The version to load into the engine now, if any."""
        if self.engine.host is None:
            return None
        current, cache = self.serving, self._cache
        if current is not None and current in cache.held:
            return None
        wanted = next(iter(cache.held), cache.pinned)
        if wanted is None or (current is None and not cache.contains(wanted)):
            wanted = cache.newest
        if wanted is None or not cache.contains(wanted):
            return None
        return wanted if self._should_load(wanted) else None

    def _should_load(self, version: int) -> bool:
        current = self.serving
        if current is None or version > current:
            return True
        return version != current and (version == self._cache.pinned or version in self._cache.held)

    def _may_load(self, version: int) -> bool:
        """Whether it is still the version to load, after the fetch."""
        current, cache = self.serving, self._cache
        if self._history != cache.history:
            return False
        if current is None or (version in cache.held and current not in cache.held):
            return True
        return not cache.held and cache.pinned in (None, version) and self._should_load(version)

    async def _fetch(self, target: int) -> None:
        host, self._history = self.engine.running(), self._cache.history
        if self._cache.direct and host.direct and (host, target) != self._asked:
            self._asked = host, target  # once; what does not come directly comes as a file
            try:
                await self._receive(host, target)
                return
            except (WeightsError, DeadlineExceeded, EngineError) as error:
                log.info("%s fetches version %d: %s", self.engine.label, target, error)
        self._doing(f"trainer {self._cache.policy}", f"the weights of version {target}")
        async with self._cache.borrowed(target) as source, self._devices.use():
            if self._may_load(target):
                host = self.engine.running()
                await self._swap(host, target, host.client.load_weights(source, self._deadline_s))

    async def _receive(self, host: EngineHostProcess, target: int) -> None:
        """Load by a direct delivery. The drain comes first, so that the other receivers do not wait
        for it.
        """
        client, member = host.client, f"{host.client.host} (pid {host.pid})"
        drains = self._mode == "wait"
        self._doing(f"trainer {self._cache.policy}", f"a direct delivery of version {target}")
        async with self._devices.use():
            try:
                if drains:
                    await client.pause(self._mode, self._drain_s)
                async with self._cache.deliver(target, member, host.workers) as delivery:
                    if not self._may_load(target):
                        raise WeightsError("it is superseded")
                    if delivery.rendezvous is not None:
                        await client.join(delivery.rendezvous, self._deadline_s)
                    await self._swap(host, target, client.receive(delivery, self._deadline_s))
            except BaseException:
                if drains:
                    await self._resume_after_failure(client)
                raise

    async def _swap(
        self, host: EngineHostProcess, version: int, load: Coroutine[Any, Any, None]
    ) -> None:
        self._doing(host.client.host, f"the load of version {version}")
        client, times = host.client, self.times
        began = time.monotonic()
        try:
            await client.pause(self._mode, self._drain_s)
            paused = time.monotonic()
            times.pause_s += paused - began
            await self._load(host, version, load)
            loaded = time.monotonic()
            times.load_s += loaded - paused
        except BaseException:
            load.close()
            await self._resume_after_failure(client)
            raise
        self._loaded = (host, version)
        self.trouble, self._full = "", False
        self.served_changed()
        await client.resume(self._deadline_s)
        times.resume_s += time.monotonic() - loaded
        times.swaps += 1
        self._cache.keep(self, version)
        log.info("%s serves version %d", self.engine.label, version)

    async def _load(
        self, host: EngineHostProcess, version: int, load: Coroutine[Any, Any, None]
    ) -> None:
        try:
            await load
        except DeadlineExceeded:
            # Its state is unknown now.
            host.kill(f"did not load version {version} within {self._deadline_s:.0f} s")
            raise
        if self._history != self._cache.history:
            host.kill(f"had loaded version {version}, which the run does not have")
            raise WeightsError(f"version {version} was discarded while it was loaded")

    async def _resume_after_failure(self, client: HostClient) -> None:
        try:
            await client.resume(self._deadline_s)
        except HostGone:
            # The supervisor of the host reports it, unless the RaaS ends.
            log.debug("the host of %s exited during a weight swap", self.engine.label)


async def _nothing() -> None:
    pass


def _failure_level(overtaken: bool, quiet: bool) -> int:
    """The log level for a version that did not arrive. A newer one may exist whose announcement is
    still in transit, so only a repeated failure of the same version is a warning.
    """
    if overtaken:
        return logging.DEBUG
    return logging.INFO if quiet else logging.WARNING
