"""Keeps a frozen engine at older versions of a policy: an opponent that follows it at a distance."""

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
    """Brings older versions of the policy ``follows`` into the engines of another name.

    A version is set aside each time when one comes that is ``behind`` versions newer than the one set aside before, which
    is then loaded. So the engines serve a version that is ``behind`` versions old when it is loaded, and less than
    twice as many when the next one is; two versions lie on the disk. The first version that is heard of is loaded at once: in a
    RaaS that joins later the newest one then, which grows old from there.
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
        self._heard = asyncio.Event()

    def hear(self, announcement: Announcement) -> None:
        """A version of the policy was announced."""
        if self._newest is None or announcement.version > self._newest.version:
            self._newest = announcement
            self._heard.set()

    def _parts(self) -> list[Coroutine[Any, Any, None]]:
        return [*super()._parts(), self._follow()]

    async def _follow(self) -> None:
        """Set one version aside after the other. One that is set aside or served is borrowed from the cache, so that
        an engine that is started again finds it."""
        newest_aside: int | None = None
        served, aside = contextlib.AsyncExitStack(), contextlib.AsyncExitStack()
        try:
            while True:
                found = await self._due(newest_aside)
                taken = contextlib.AsyncExitStack()
                self._cache.on_announced(found)
                try:
                    await taken.enter_async_context(self._cache.borrowed(found.version))
                except (AstraFlowError, ValueError, OSError) as error:
                    # It may have been overtaken; what is newest after a moment will do as well.
                    log.info("%s skips version %d: %s", self.policy, found.version, error)
                    await asyncio.sleep(RETRY_S)
                    self._heard.set()
                    continue
                self.pin(found.version if newest_aside is None else newest_aside)
                newest_aside = found.version
                await served.aclose()
                served, aside = aside, taken
        finally:
            await served.aclose()
            await aside.aclose()

    async def _due(self, aside: int | None) -> Announcement:
        """The newest version, as soon as it is to be set aside after ``aside``."""
        while True:
            await self._heard.wait()
            self._heard.clear()
            newest = self._newest
            if newest is not None and (aside is None or newest.version >= aside + self._behind):
                return newest
