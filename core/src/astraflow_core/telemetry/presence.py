"""Time that does not pass while this process is stopped.

A process that is stopped (SIGSTOP, a frozen container, a suspended machine) finds all its deadlines passed
when it goes on, though nobody let it down: it was away itself. Deadlines are therefore measured in seconds
in which the process ran.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

TICK_S = 0.5
AWAY_S = 2.0
"""A clock that was not looked at for so long, though it is every ``TICK_S``, belongs to a process that
was stopped."""


class PresenceClock:
    """Seconds that only grow. Of a gap between two looks longer than ``AWAY_S`` it counts ``TICK_S``.
    Any thread may look. ``away_s``: what was not counted."""

    def __init__(self, now: Callable[[], float] = time.monotonic, away_s: float = 0.0) -> None:
        self.away_s = away_s
        self._now, self._seen = now, now()
        self._lock = threading.Lock()

    def __call__(self) -> float:
        """Look at the clock."""
        with self._lock:
            now = self._now()
            gap = now - self._seen
            if gap > AWAY_S:
                self.away_s += gap - TICK_S
            self._seen = now
            return now - self.away_s


class _OwnClock:
    """The clock of this process, kept going by a thread."""

    def __init__(self) -> None:
        self._clock = PresenceClock()
        self._pid = 0

    def __call__(self) -> float:
        if self._pid != os.getpid():
            # At the first look, and in a forked child: threads and the state of locks stay behind.
            self._pid = os.getpid()
            self._clock = PresenceClock(away_s=self._clock.away_s)
            threading.Thread(target=self._tick, name="presence", daemon=True).start()
        return self._clock()

    def _tick(self) -> None:
        while True:
            time.sleep(TICK_S)
            self._clock()


present_s = _OwnClock()
"""``present_s()``: seconds in which this process ran, since an arbitrary point."""


class PresentLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers count only the time in which the process ran."""

    def time(self) -> float:
        """The loop's clock."""
        return present_s()


def run(main: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` on a :class:`PresentLoop`."""
    with asyncio.Runner(loop_factory=PresentLoop) as runner:
        return runner.run(main)
