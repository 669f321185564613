"""Few places for many versions, each of which is loaded once for all that wait for it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
W = TypeVar("W")

PATIENCE_S = 1.0
"""How long requests for a version that is loaded go ahead of those for another one."""


@dataclass
class VersionSlot(Generic[T]):
    """A place with one version at a time; ``users`` requests use it."""

    value: T
    version: int
    users: int = 0
    used: int = 0
    loading: bool = False


@dataclass
class _Coming(Generic[T]):
    """A version that no slot has yet, since when it is waited for, and by how many requests."""

    since: float
    wanted: int = 0
    task: asyncio.Future[VersionSlot[T]] | None = None


class VersionSlots(Generic[T, W]):
    """At most ``size`` slots. A request waits for one that has its version, or that is unused: the latter loads it, for all
    requests that wait for the same version. Versions are loaded in the order in which they were first asked for, and once one is
    waited for longer than ``PATIENCE_S``, no request goes ahead of it, so that none waits indefinitely. ``begin``
    creates a slot; ``load`` loads the requested version into an unused one."""

    def __init__(
        self,
        size: int,
        begin: Callable[[], Awaitable[VersionSlot[T]]],
        load: Callable[[VersionSlot[T], W], Awaitable[None]],
    ) -> None:
        self._size, self._begin, self._load = size, begin, load
        self._slots: list[VersionSlot[T]] = []
        self._coming: dict[int, _Coming[T]] = {}
        self._turn, self._changed = asyncio.Lock(), asyncio.Condition()
        self._uses = itertools.count(1)

    @contextlib.asynccontextmanager
    async def using(self, version: int, wanted: W) -> AsyncIterator[T]:
        """The slot with the version, within the ``with`` block; ``wanted`` is what it is loaded from."""
        slot = self._at_hand(version) or await self._brought(version, wanted)
        try:
            yield slot.value
        finally:
            await self._leave(slot)

    async def close(self) -> list[T]:
        """Load no more; returns what the slots have, which is theirs no longer."""
        tasks = [each.task for each in self._coming.values() if each.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        slots, self._slots = self._slots, []
        return [slot.value for slot in slots]

    def remove(self, slot: VersionSlot[T]) -> None:
        """What it had is gone; another one can be made."""
        self._slots.remove(slot)

    def give_up(self, value: T) -> bool:
        """Remove the slot with this value; whether there was one. Its present users keep it."""
        left = [slot for slot in self._slots if slot.value is not value]
        found, self._slots = len(left) < len(self._slots), left
        return found

    def _at_hand(self, version: int) -> VersionSlot[T] | None:
        """A slot that has the version, now used; ``None`` also if others have waited for one for too long."""
        oldest = min((each.since for each in self._coming.values()), default=math.inf)
        if time.monotonic() - oldest > PATIENCE_S:
            return None
        for slot in self._slots:
            if slot.version == version and not slot.loading:
                return self._use(slot, 1)
        return None

    async def _brought(self, version: int, wanted: W) -> VersionSlot[T]:
        """A slot that will have the version, used: all that wait for it meanwhile get it at once."""
        coming = self._coming.get(version)
        if coming is None:
            coming = self._coming[version] = _Coming(time.monotonic())
            coming.task = asyncio.ensure_future(self._bring(version, wanted, coming))
        task = coming.task
        assert task is not None
        coming.wanted += 1
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            coming.wanted -= 1
            if task.done() and not task.cancelled() and task.exception() is None:
                await self._leave(task.result())  # it was counted among the users
            raise

    async def _bring(self, version: int, wanted: W, coming: _Coming[T]) -> VersionSlot[T]:
        try:
            async with self._turn:
                return self._use(await self._with_version(version, wanted), coming.wanted)
        finally:
            del self._coming[version]

    async def _leave(self, slot: VersionSlot[T]) -> None:
        slot.users -= 1
        async with self._changed:
            self._changed.notify_all()

    def _use(self, slot: VersionSlot[T], users: int) -> VersionSlot[T]:
        slot.users += users
        slot.used = next(self._uses)
        return slot

    async def _with_version(self, version: int, wanted: W) -> VersionSlot[T]:
        for slot in self._slots:
            if slot.version == version:
                return slot
        async with self._changed:
            await self._changed.wait_for(
                lambda: len(self._slots) < self._size or any(not each.users for each in self._slots)
            )
        if len(self._slots) < self._size:
            slot = await self._begin()
            self._slots.append(slot)
        else:
            slot = min((each for each in self._slots if not each.users), key=lambda each: each.used)
        if slot.version != version:
            slot.loading = True
            try:
                await self._load(slot, wanted)
                slot.version = version
            finally:
                slot.loading = False
        return slot
