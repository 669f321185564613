"""Keeps the engine of one policy at the newest version: fetch, pause, load, resume.

A RaaS refreshes on its own clock. A version is loaded whole and verified or not at all; whatever fails,
the engine goes on with what it has.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from astraflow_core.errors import AstraFlowError, DeadlineExceeded
from astraflow_core.protocols.engine import PauseMode
from astraflow_core.protocols.transport import Receiver
from astraflow_core.raas.host_client import HostClient
from astraflow_core.raas.host_process import EngineHostProcess
from astraflow_core.raas.host_protocol import HostGone
from astraflow_core.raas.supervised_engine import SupervisedEngine
from astraflow_core.raas.threads import in_thread
from astraflow_core.types import Announcement, WeightSource
from astraflow_core.wire.messages import Wait

log = logging.getLogger("astraflow.raas")
REMEMBERED = 16
"""Announcements kept, so that a pin to a version slightly older than the newest can be met."""

LONGEST_PAUSE_S = 10.0


@dataclass
class RefreshTimes:
    """Seconds spent over all swaps, and how many there were."""

    pull_s: float = 0.0
    pause_s: float = 0.0
    load_s: float = 0.0
    resume_s: float = 0.0
    swaps: int = 0
    failures: int = 0
    bytes_received: int = 0


class WeightRefresh:
    """Brings announced versions into ``engine`` through ``receiver``. It only moves forward, except to a
    pinned version: an evaluation whose host died goes on where the newest version is served already.

    ``drain_s`` is the longest that a pause may take (mode ``wait`` drains requests), ``deadline_s`` the
    longest for a fetch or a load.
    """

    def __init__(
        self,
        engine: SupervisedEngine,
        receiver: Receiver,
        mode: PauseMode,
        deadline_s: float,
        drain_s: float,
    ) -> None:
        self.policy = engine.policy
        self.times = RefreshTimes()
        self.seen = -1
        self.served_changed: Callable[[], None] = lambda: None
        self._engine, self._receiver, self._mode = engine, receiver, mode
        self._deadline_s, self._drain_s = deadline_s, drain_s
        self._known: dict[int, Announcement] = {}
        self._pin: int | None = None
        self._held: Counter[int] = Counter()
        self._source: WeightSource | None = None
        self._fetched: WeightSource | None = None
        self._loaded: tuple[EngineHostProcess, int] | None = None
        self._wake = asyncio.Event()
        self._activity: tuple[str, str, float, float] | None = None
        self._trouble = ""

    @property
    def serving(self) -> int | None:
        """The version that the running host serves; ``None`` before its first and after its death."""
        if self._loaded is None or self._loaded[0] is not self._engine.host:
            return None
        return self._loaded[1]

    def wake(self) -> None:
        """Something changed: look again at what should be served."""
        self._wake.set()

    def hear(self, announcement: Announcement) -> None:
        """A version was announced."""
        self._known[announcement.version] = announcement
        for version in sorted(self._known.keys() - {self._pin})[:-REMEMBERED]:
            del self._known[version]
        self.seen = max(self.seen, announcement.version)
        self.wake()

    def pin(self, version: int | None) -> None:
        """Serve exactly ``version`` until the pin is gone (``None``)."""
        if version != self._pin:
            self._pin = version
            self.wake()

    @contextlib.contextmanager
    def hold(self, version: int | None) -> Iterator[None]:
        """No swap away from ``version`` within the context, whatever happens to the pin."""
        if version is None:
            yield
            return
        self._held[version] += 1
        try:
            yield
        finally:
            self._held[version] -= 1
            self._held += Counter()
            self.wake()

    def wait(self) -> Wait | None:
        """What the refresh waits for, for people."""
        if self._activity is None:
            return None
        whom, what, since, stopped_before_s = self._activity
        waited = time.monotonic() - since
        stopped_s = self._engine.stopped_s - stopped_before_s
        text = f"{what}; last trouble: {self._trouble}" if self._trouble else what
        return Wait(
            who=f"weight refresh of policy {self.policy}",
            for_whom=whom,
            what=text,
            since_s=waited,
            until_s=max(0.0, self._deadline_s + stopped_s - waited),
        )

    async def run(self) -> None:
        """Refresh until cancelled."""
        failures = 0
        while True:
            self._wake.clear()
            target = self._target()
            if target is None:
                self._idle()
                await self._wake.wait()
                continue
            try:
                await self._bring(target)
            except HostGone:
                # The supervisor notices it too and starts another one, which wakes us.
                await self._wake.wait()
            except (AstraFlowError, ValueError, OSError) as error:
                failures += 1
                self.times.failures += 1
                self._trouble = f"version {target}: {error}"
                overtaken = self._target() not in (None, target)
                log.log(
                    logging.INFO if overtaken else logging.WARNING,
                    "policy %r stays at %s: %s",
                    self.policy,
                    self.serving,
                    self._trouble,
                )
                if not overtaken:
                    await self._back_off(failures)
            else:
                failures = 0

    def _idle(self) -> None:
        if self._engine.host is None:
            self._doing("the engine host", "its start")
        elif self.serving is None:
            self._doing("the dataflow", "the announcement of a first version")
        elif self._pin is not None and self._pin != self.serving:
            self._doing("the dataflow", f"an announcement of pinned version {self._pin}")
        else:
            self._activity = None

    async def _back_off(self, failures: int) -> None:
        pause = min(0.25 * 2 ** min(failures, 10), LONGEST_PAUSE_S)
        self._doing("a retry", f"a version that can be loaded, in {pause:.1f} s")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._wake.wait()

    def _doing(self, whom: str, what: str) -> None:
        if self._activity is None or self._activity[:2] != (whom, what):
            self._activity = (whom, what, time.monotonic(), self._engine.stopped_s)

    def _target(self) -> int | None:
        """The version to bring into the engine now, if any."""
        if self._engine.host is None:
            return None
        current = self.serving
        if current is not None and self._held:
            return None
        wanted = next(iter(self._held), self._pin)
        if wanted is None or (current is None and not self._can_bring(wanted)):
            wanted = max(self._known, default=None)
        if wanted is None or not self._can_bring(wanted):
            return None
        return wanted if self._is_due(wanted) else None

    def _is_due(self, version: int) -> bool:
        current = self.serving
        if current is None or version > current:
            return True
        return version == self._pin and version != current

    def _can_bring(self, version: int) -> bool:
        return version in self._known or self._local(version) is not None

    def _local(self, version: int) -> WeightSource | None:
        for source in (self._source, self._fetched):
            if source is not None and source.version == version:
                return source
        return None

    def _may_load(self, version: int) -> bool:
        if self.serving is None:
            return True
        return not self._held and self._pin in (None, version) and self._is_due(version)

    async def _bring(self, target: int) -> None:
        source = self._local(target) or await self._fetch(self._known[target])
        if self._may_load(target):
            await self._swap(self._engine.running(), source)

    async def _fetch(self, announcement: Announcement) -> WeightSource:
        self._doing(f"trainer {self.policy}", f"the weights of version {announcement.version}")
        began = time.monotonic()
        source = await in_thread(
            f"fetch-{self.policy}", partial(self._receiver.fetch, announcement, self._deadline_s)
        )
        self.times.pull_s += time.monotonic() - began
        self.times.bytes_received += source.bytes_received
        if self._fetched is not None:
            await self._release(self._fetched)
        self._fetched = source
        return source

    async def _swap(self, host: EngineHostProcess, source: WeightSource) -> None:
        self._doing(host.client.host, f"the load of version {source.version}")
        client, times = host.client, self.times
        began = time.monotonic()
        try:
            await client.pause(self._mode, self._drain_s)
            paused = time.monotonic()
            times.pause_s += paused - began
            await self._load(host, source)
            loaded = time.monotonic()
            times.load_s += loaded - paused
        except BaseException:
            await self._resume_after_failure(client)
            raise
        self._loaded = (host, source.version)
        self._trouble = ""
        self.served_changed()
        await client.resume(self._deadline_s)
        times.resume_s += time.monotonic() - loaded
        times.swaps += 1
        log.info("policy %r serves version %d", self.policy, source.version)
        await self._settle(source)

    async def _load(self, host: EngineHostProcess, source: WeightSource) -> None:
        try:
            await host.client.load_weights(source, self._deadline_s)
        except DeadlineExceeded:
            # Nobody can say what it holds now.
            host.kill(f"did not load version {source.version} within {self._deadline_s:.0f} s")
            raise

    async def _resume_after_failure(self, client: HostClient) -> None:
        try:
            await client.resume(self._deadline_s)
        except HostGone:
            log.warning("the engine host of policy %r went away during a swap", self.policy)

    async def _settle(self, source: WeightSource) -> None:
        """``source`` is what the engine has: keep it for a restart, let go of the others."""
        old, self._source = self._source, source
        if self._fetched is source:
            self._fetched = None
        if old is not None and old is not source:
            await self._release(old)
        for version in [version for version in self._known if version < source.version]:
            del self._known[version]

    async def _release(self, source: WeightSource) -> None:
        await in_thread(f"release-{self.policy}", partial(self._receiver.release, source))

    async def close(self, deadline_s: float) -> None:
        """Release everything that was fetched."""
        try:
            async with asyncio.timeout(deadline_s):
                await in_thread(f"close-{self.policy}", self._receiver.close)
        except TimeoutError:
            log.warning(
                "the receiver of policy %r did not close within %.0f s", self.policy, deadline_s
            )
