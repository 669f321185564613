"""Keeps the replicas of one policy's engine at the newest version, each independently.

A RaaS refreshes on its own clock. A version is fetched and verified once and loaded into every
replica completely or not at all; after a failure a replica continues with the version that it has.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from astraflow_core.protocols.engine import PauseMode
from astraflow_core.protocols.transport import Receiver
from astraflow_core.types import Announcement, WeightSource
from astraflow_runtime.raas.engines.colocation import OWN_DEVICES, Devices
from astraflow_runtime.raas.engines.replica_refresh import ReplicaRefresh
from astraflow_runtime.raas.engines.supervised_engine import SupervisedEngine
from astraflow_runtime.raas.engines.version_cache import VersionCache
from astraflow_wire.messages import Wait


@dataclass(frozen=True, slots=True)
class RefreshTimes:
    """The time of all swaps of all replicas, and their number. Each version is pulled once.
    ``link_mb_s`` and ``link_s`` are rate and round trip of the last fetch that was long enough to
    measure, 0 before."""

    pull_s: float
    pause_s: float
    load_s: float
    resume_s: float
    swaps: int
    failures: int
    bytes_received: int
    link_mb_s: float
    link_s: float


class WeightRefresh:
    """Brings announced versions into ``engines`` through ``receiver``: the control plane of a policy, which
    reaches every replica and reports on each (:attr:`replicas`, by the order of ``engines``). The deadlines
    are those of :class:`ReplicaRefresh`."""

    def __init__(
        self,
        engines: Sequence[SupervisedEngine],
        receiver: Receiver,
        mode: PauseMode,
        deadline_s: float,
        drain_s: float,
        devices: Devices = OWN_DEVICES,
    ) -> None:
        self.policy = engines[0].policy
        self._cache = VersionCache(self.policy, receiver, deadline_s)
        self.replicas = [
            ReplicaRefresh(engine, self._cache, mode, deadline_s, drain_s, devices)
            for engine in engines
        ]
        for replica in self.replicas:
            replica.served_changed = lambda: self.served_changed()
        self.served_changed: Callable[[], None] = lambda: None

    @property
    def serving(self) -> int | None:
        """The oldest version that a replica serves; ``None`` while none serves any. A replica that
        restarts loads the version of the others, so this never decreases.
        """
        found = [version for r in self.replicas if (version := r.serving) is not None]
        return min(found, default=None)

    @property
    def seen(self) -> int:
        """The newest version that was announced; -1 before the first."""
        return self._cache.seen

    @property
    def digest(self) -> str:
        """The digest of the version served, as announced; empty if none is served."""
        return self._cache.digest(self.serving)

    @property
    def newest_file(self) -> int | None:
        """The highest version that is here as a file; ``None`` if there is none."""
        return self._cache.newest_file

    def borrowed(self, version: int) -> AbstractAsyncContextManager[WeightSource]:
        """The file of a version; it stays as it is within the context."""
        return self._cache.borrowed(version)

    def discard(self) -> None:
        """Forget all versions, and load the next that is announced: those so far are not of this run."""
        self._cache.discard()
        for replica in self.replicas:
            replica.discard()
        self.served_changed()

    @property
    def times(self) -> RefreshTimes:
        """The sums over the replicas."""
        each, link = [replica.times for replica in self.replicas], self._cache.link
        return RefreshTimes(
            pull_s=self._cache.fetch_s,
            pause_s=sum(times.pause_s for times in each),
            load_s=sum(times.load_s for times in each),
            resume_s=sum(times.resume_s for times in each),
            swaps=sum(times.swaps for times in each),
            failures=sum(times.failures for times in each),
            bytes_received=self._cache.bytes_received,
            link_mb_s=0.0 if link is None else link.mb_s,
            link_s=0.0 if link is None else link.round_trip_s,
        )

    def wake(self) -> None:
        """Something changed: every replica checks again which version to serve."""
        for replica in self.replicas:
            replica.wake()

    def on_announced(self, announcement: Announcement) -> None:
        """Record an announced version."""
        self._cache.on_announced(announcement)
        self.wake()

    def pin(self, version: int | None) -> None:
        """Serve exactly ``version`` until the pin is gone (``None``)."""
        if version != self._cache.pinned:
            self._cache.pinned = version
            self.wake()

    @contextlib.contextmanager
    def hold(self, version: int | None) -> Iterator[None]:
        """Keep ``version`` loaded within the context, even if the pin changes."""
        if version is None:
            yield
            return
        try:
            with self._cache.hold(version):
                self.wake()
                yield
        finally:
            self.wake()

    def waits(self) -> list[Wait]:
        """The current waits of the replicas."""
        return [wait for replica in self.replicas if (wait := replica.wait()) is not None]

    async def run(self) -> None:
        """Refresh until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for part in self._parts():
                    group.create_task(part)
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    def _parts(self) -> list[Coroutine[Any, Any, None]]:
        return [replica.run() for replica in self.replicas]

    async def close(self, deadline_s: float) -> None:
        """Release all fetched versions."""
        await self._cache.close(deadline_s)
