"""Keeps a frozen engine at older versions of a policy, for example as an opponent in self-play."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Sequence
from typing import Any

from astraflow_core.errors import AstraFlowError
from astraflow_core.protocols.engine import PauseMode
from astraflow_core.protocols.transport import Receiver
from astraflow_core.types import Announcement
from astraflow_runtime.raas.engines.colocation import OWN_DEVICES, Devices
from astraflow_runtime.raas.engines.refresh import WeightRefresh
from astraflow_runtime.raas.engines.supervised_engine import SupervisedEngine

log = logging.getLogger("astraflow.raas")
RETRY_S = 1.0


class FollowingRefresh(WeightRefresh):
    """Loads older versions of the policy ``follows`` into the engines of another name. Whenever a
    version is announced that is ``behind`` versions newer than the stored one, it is stored and the
    previously stored one is loaded. So the engines serve a version that is ``behind`` versions old
    when it is loaded, and less than twice as old when the next one is; two versions are on disk.
    The first announced version is loaded at once; in a RaaS that joins later that is the newest one
    at that time.
    """

    def __init__(
        self,
        engines: Sequence[SupervisedEngine],
        receiver: Receiver,
        mode: PauseMode,
        deadline_s: float,
        drain_s: float,
        devices: Devices = OWN_DEVICES,
        *,
        follows: str,
        behind: int,
    ) -> None:
        super().__init__(engines, receiver, mode, deadline_s, drain_s, devices)
        self.follows, self._behind = follows, behind
        self._cache.policy = follows  # whose trainer is waited for
        self._cache.direct = False  # a version is set aside as a file
        self._newest: Announcement | None = None
        self._announced = asyncio.Event()
        self._aside: int | None = None

    def discard(self) -> None:
        """Follow from the next announced version on; what is served stays until it is stored."""
        self._newest = self._aside = None

    def on_announced(self, announcement: Announcement) -> None:
        """Record an announced version of the policy."""
        if self._newest is None or announcement.version > self._newest.version:
            self._newest = announcement
            self._announced.set()

    def _parts(self) -> list[Coroutine[Any, Any, None]]:
        return [*super()._parts(), self._follow()]

    async def _follow(self) -> None:
        """Store one version after the other. A stored or served version is kept in the cache, so
        that a restarted engine finds it.
        """
        served, aside = contextlib.AsyncExitStack(), contextlib.AsyncExitStack()
        try:
            while True:
                found = await self._next_to_store()
                taken = contextlib.AsyncExitStack()
                self._cache.on_announced(found)
                try:
                    await taken.enter_async_context(self._cache.borrowed(found.version))
                except (AstraFlowError, ValueError, OSError) as error:
                    # It may be outdated by now; retry with the newest version after a moment.
                    log.info("%s skips version %d: %s", self.policy, found.version, error)
                    await asyncio.sleep(RETRY_S)
                    self._announced.set()
                    continue
                self.pin(found.version if self._aside is None else self._aside)
                self._aside = found.version
                await served.aclose()
                served, aside = aside, taken
        finally:
            await served.aclose()
            await aside.aclose()

    async def _next_to_store(self) -> Announcement:
        """The next version to store after the last one; waits until it is announced."""
        while True:
            await self._announced.wait()
            self._announced.clear()
            newest, aside = self._newest, self._aside
            if newest is not None and (aside is None or newest.version >= aside + self._behind):
                return newest
