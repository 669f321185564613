"""The announced and the fetched versions of one policy, for all replicas of a RaaS."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import cast

from astraflow_core.errors import WeightsError
from astraflow_core.protocols.transport import DirectReceiver, Receiver
from astraflow_core.types import Announcement, Delivery, Link, WeightSource
from astraflow_runtime.threads import in_thread

log = logging.getLogger("astraflow.raas")
REMEMBERED = 16
"""The number of announcements kept, so that a version slightly older than the newest can be pinned.
"""


class VersionCache:
    """Fetches each version once and keeps it while a replica serves or loads it. ``pinned`` is the
    version that every replica should serve, ``held`` those that requests in flight need;
    ``fetch_s`` and ``bytes_received`` are totals over all fetches; ``link`` is what the last long
    enough fetch measured of its link; ``history`` counts how often all versions were discarded. ``direct``: engines may receive a version without a file
    (:meth:`deliver`).
    """

    def __init__(self, policy: str, receiver: Receiver, deadline_s: float) -> None:
        self.policy = policy
        self.seen = -1
        self.pinned: int | None = None
        self.held: Counter[int] = Counter()
        self.fetch_s = 0.0
        self.bytes_received = 0
        self.link: Link | None = None
        self._receiver, self._deadline_s = receiver, deadline_s
        self.direct = hasattr(receiver, "meet")
        self._announced: dict[int, Announcement] = {}
        self._digests: dict[int, str] = {}
        self._discarded: list[WeightSource] = []
        self.history = 0
        self._sources: dict[int, WeightSource] = {}
        self._last_fetched: int | None = None
        self._kept: dict[object, int] = {}
        self._borrowed: Counter[Path] = Counter()
        self._fetching = asyncio.Lock()

    def on_announced(self, announcement: Announcement) -> None:
        """Record an announced version."""
        self._announced[announcement.version] = announcement
        self._digests[announcement.version] = announcement.digest
        for version in sorted(self._announced.keys() - {self.pinned})[:-REMEMBERED]:
            del self._announced[version]
        for version in self._digests.keys() - self._announced.keys() - set(self._kept.values()):
            del self._digests[version]
        self.seen = max(self.seen, announcement.version)

    def digest(self, version: int | None) -> str:
        """The digest with which a version that a replica serves was announced; empty if unknown."""
        return "" if version is None else self._digests.get(version, "")

    def discard(self) -> None:
        """Forget all versions: they belong to another history of the run, which may reuse their numbers."""
        self.seen, self.pinned, self._last_fetched = -1, None, None
        self.history += 1
        self._discarded += self._sources.values()
        for versions in (self._announced, self._digests, self._sources, self._kept):
            versions.clear()

    @property
    def newest(self) -> int | None:
        """The highest available version."""
        return max(self._announced, default=None)

    @property
    def newest_file(self) -> int | None:
        """The highest version that is here as a file."""
        return max(self._sources, default=None)

    def contains(self, version: int) -> bool:
        """Whether the version is available."""
        return version in self._announced or version in self._sources

    @contextlib.contextmanager
    def hold(self, version: int) -> Iterator[None]:
        """Hold ``version`` for requests in flight, within the context."""
        self.held[version] += 1
        try:
            yield
        finally:
            self.held[version] -= 1
            self.held += Counter()

    @contextlib.asynccontextmanager
    async def borrowed(self, version: int) -> AsyncIterator[WeightSource]:
        """The source of the version, fetched if necessary; it is not released within the context."""
        if (source := self._sources.get(version)) is None:
            async with self._fetching:
                source = self._sources.get(version) or await self._fetch(version)
        self._borrowed[source.path] += 1
        try:
            yield source
        finally:
            self._borrowed[source.path] -= 1
            self._borrowed += Counter()
            await self._release_unused()

    @contextlib.asynccontextmanager
    async def deliver(self, version: int, member: str, workers: int) -> AsyncIterator[Delivery]:
        """A direct delivery of the version to ``member``, open within the context; available if
        :attr:`direct` is set.
        """
        receiver, told = cast(DirectReceiver, self._receiver), self._announced.get(version)
        if told is None:
            raise WeightsError(f"version {version} was superseded")
        delivery = await in_thread(
            f"meet-{member}", partial(receiver.meet, told, member, workers, self._deadline_s)
        )
        try:
            yield delivery
        finally:
            await in_thread(f"done-{member}", partial(receiver.done, told, delivery))

    async def _fetch(self, version: int) -> WeightSource:
        if version not in self._announced:
            raise WeightsError(
                f"version {version} was superseded while another version was being fetched"
            )
        began, history = time.monotonic(), self.history
        source = await in_thread(
            f"fetch-{self.policy}",
            partial(self._receiver.fetch, self._announced[version], self._deadline_s),
        )
        if history != self.history:
            self._discarded.append(source)
            raise WeightsError(f"version {version} was discarded while it was fetched")
        self.fetch_s += time.monotonic() - began
        self.bytes_received += source.bytes_received
        self.link = source.link or self.link
        self._sources[version] = source
        self._last_fetched = version
        return source

    def keep(self, replica: object, version: int) -> None:
        """``replica`` has loaded ``version``: keep it for a restart, instead of the previous one."""
        self._kept[replica] = version
        oldest = min(self._kept.values())
        for old in [known for known in self._announced if known < oldest]:
            del self._announced[old]

    async def _release_unused(self) -> None:
        kept = {*self._kept.values(), self._last_fetched}
        for version in self._sources.keys() - kept:
            if self._sources[version].path not in self._borrowed:
                self._discarded.append(self._sources.pop(version))
        for source in [each for each in self._discarded if each.path not in self._borrowed]:
            self._discarded.remove(source)
            await in_thread(f"release-{self.policy}", partial(self._receiver.release, source))

    async def close(self, deadline_s: float) -> None:
        """Release all fetched versions."""
        try:
            async with asyncio.timeout(deadline_s):
                await in_thread(f"close-{self.policy}", self._receiver.close)
        except TimeoutError:
            log.warning(
                "the receiver of policy %r did not close within %.0f s", self.policy, deadline_s
            )
