"""The episodes that a RaaS runs at once, the tasks that it has leased ahead, and how many of those it needs."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Callable

_MEMORY_S = 5.0
"""Time constant of the rate at which episodes end."""
_ROUND_TRIPS = 8


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


class EpisodePlaces:
    """``limit``: how many episodes may run at once. ``running``: how many do, those of begun tasks that have not ended.
    A task that was leased before there is room for it waits for its turn. ``clock``: seconds."""

    def __init__(self, limit: Callable[[], int], clock: Callable[[], float] = _loop_time) -> None:
        self._limit, self._clock = limit, clock
        self.running = 0
        self._waiting: deque[TaskPlace] = deque()
        self._round_trips: deque[float] = deque(maxlen=_ROUND_TRIPS)
        self._ended, self._ended_at = 0.0, 0.0

    @property
    def held(self) -> int:
        """Episodes of all leased tasks that have not ended."""
        return self.running + sum(place.episodes for place in self._waiting)

    def free(self, group: int) -> int:
        """The number of episodes to lease tasks for, 0 if it is less than a ``group``: as many as have room when the
        answer is here. If nothing is leased, always a whole group."""
        free = self._limit() + self._ahead(group) - self.held
        if not self.held:
            return max(free, group)
        return free if free >= group else 0

    def answered(self, seconds: float) -> None:
        """A call that waits for nothing took so long."""
        self._round_trips.append(seconds)

    def take(self, episodes: int) -> TaskPlace:
        """Take a place for a task that is leased now."""
        place = TaskPlace(self, episodes)
        self._waiting.append(place)
        self.look()
        return place

    def look(self) -> None:
        """Begin the tasks that there is room for, in the order in which they were leased."""
        while self._waiting and self._has_room(self._waiting[0].episodes):
            self._waiting[0].start()

    def remove(self, place: TaskPlace) -> None:
        """Remove a task that no longer waits."""
        self._waiting.remove(place)

    def episode_ended(self) -> None:
        """One of those that run."""
        self.running -= 1
        now = self._clock()
        self._ended = self._decayed(now) + 1
        self._ended_at = now

    def _has_room(self, episodes: int) -> bool:
        return self.running == 0 or self.running + episodes <= self._limit()

    def _ahead(self, group: int) -> int:
        """The episodes that are expected to end within a round trip, the shortest of the last, since a retry took longer. If
        there are any, at least a group: it ends in no steady stream, and room for the next one comes at once."""
        if not self._round_trips:
            return 0
        ending = min(self._round_trips) * self._decayed(self._clock()) / _MEMORY_S
        return min(self.running, max(group, int(ending))) if ending >= 1 else 0

    def _decayed(self, now: float) -> float:
        return self._ended * math.exp((self._ended_at - now) / _MEMORY_S)


class TaskPlace:
    """That of one task, with ``episodes`` that have not ended."""

    def __init__(self, places: EpisodePlaces, episodes: int) -> None:
        self._places, self.episodes = places, episodes
        self._begun = asyncio.Event()

    async def begin(self, within_s: float) -> None:
        """Wait for a free place, for ``within_s`` at most: the lease has a limit, and an engine has its own queue."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._begun.wait()
        if not self._begun.is_set():
            self.start()

    def start(self) -> None:
        """Start the episodes of a task."""
        self._places.remove(self)
        self._places.running += self.episodes
        self._begun.set()

    def ended(self) -> None:
        """One of its episodes has ended; the room is free while the longest continues."""
        if self.episodes and self._begun.is_set():
            self.episodes -= 1
            self._places.episode_ended()
            self._places.look()

    def leave(self) -> None:
        """The task has ended, whatever its outcome."""
        if self._begun.is_set():
            self._places.running -= self.episodes
        else:
            self._places.remove(self)
        self.episodes = 0
        self._places.look()
