"""Time that does not pass while this process is stopped.

A process that is stopped (SIGSTOP, a frozen container, a suspended machine) finds all its deadlines passed
when it continues, though nobody let it down: it was away itself. Deadlines are therefore measured in seconds
in which the process ran.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

TICK_S = 0.5
SUSPENDED_AFTER_S = 2.0
"""A clock that was not looked at for so long, though it is every ``TICK_S``, belongs to a process that
was stopped."""


class ActiveClock:
    """Seconds that only grow. Somebody calls :meth:`look` every ``TICK_S``; of a gap between two looks that
    is longer than ``SUSPENDED_AFTER_S`` it counts ``TICK_S``. Any thread may use it. ``away_s``: what was not
    counted."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.away_s = 0.0
        self._now, self._seen = now, now()
        self._lock = threading.Lock()

    def __call__(self) -> float:
        """The time. Without the lock, for event loops ask often: a process may be stopped between any
        two of these lines, so the first is checked again at the end."""
        away_s = self.away_s
        now = self._now()
        if now - self._seen > SUSPENDED_AFTER_S or self.away_s != away_s:
            return self.look()
        return now - away_s

    def look(self) -> float:
        """The time, and the gap since the last look."""
        with self._lock:
            now = self._now()
            gap = now - self._seen
            if gap > SUSPENDED_AFTER_S:
                self.away_s += gap - TICK_S
            self._seen = now
            return now - self.away_s


class _OwnClock(ActiveClock):
    """The clock of this process, kept going by a thread that starts at its first look."""

    def __init__(self) -> None:
        super().__init__()
        self._seen = -math.inf
        self._ticking = False
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        """Threads stay behind, and nobody knows who held the lock."""
        self._lock = threading.Lock()
        self._seen, self._ticking = -math.inf, False

    def look(self) -> float:
        """The time, and the gap since the last look; starts the thread."""
        with self._lock:
            if not self._ticking:
                self._seen, self._ticking = self._now(), True
                threading.Thread(target=self._tick, name="presence", daemon=True).start()
        return super().look()

    def _tick(self) -> None:
        while True:
            time.sleep(TICK_S)
            self.look()


active_time = _OwnClock()
"""``active_time()``: seconds in which this process ran, since an arbitrary point."""


class SuspendAwareLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers count only the time in which the process ran."""

    def time(self) -> float:
        """The loop's clock."""
        return active_time()


def run(main: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` on a :class:`SuspendAwareLoop`."""
    with asyncio.Runner(loop_factory=SuspendAwareLoop) as runner:
        return runner.run(main)
