"""A clock that does not advance while this process is stopped. After a stop (SIGSTOP, a frozen
container, a suspended machine) all deadlines of a process would have passed although no other
process was slow. Deadlines are therefore measured in seconds for which the process ran.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

TICK_S = 0.5
SUSPENDED_AFTER_S = 2.0
"""If the clock, which is read every ``TICK_S``, was not read for so long, the process was stopped.
"""


class ActiveClock:
    """Monotonic seconds. :meth:`look` has to be called every ``TICK_S``; a gap of more than
    ``SUSPENDED_AFTER_S`` between two calls counts as ``TICK_S``. Thread-safe. ``away_s``: the
    seconds that were not counted.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.away_s = 0.0
        self._simulated: Callable[[], float] | None = None
        self._now, self._seen = now, now()
        self._lock = threading.Lock()

    def __call__(self) -> float:
        """The time. Lock-free, since event loops read it often: the process may be stopped between
        any two of these lines, so the first value is checked again at the end.
        """
        if self._simulated is not None:
            return self._simulated()
        away_s = self.away_s
        now = self._now()
        if now - self._seen > SUSPENDED_AFTER_S or self.away_s != away_s:
            return self.look()
        return now - away_s

    def look(self) -> float:
        """The time, and the gap since the last call."""
        with self._lock:
            now = self._now()
            gap = now - self._seen
            if gap > SUSPENDED_AFTER_S:
                self.away_s += gap - TICK_S
            self._seen = now
            return now - self.away_s


class _OwnClock(ActiveClock):
    """The clock of this process, read periodically by a thread that starts with the first call."""

    def __init__(self) -> None:
        super().__init__()
        self._seen = -math.inf
        self._ticking = False
        os.register_at_fork(after_in_child=self._forked)

    @contextlib.contextmanager
    def simulated(self, now: Callable[[], float]) -> Iterator[None]:
        """Show ``now()`` instead, everywhere in this process: services then run on a virtual clock."""
        self._simulated = now
        try:
            yield
        finally:
            self._simulated = None

    def _forked(self) -> None:
        """A fork has neither the thread nor, perhaps, a free lock."""
        self._lock = threading.Lock()
        self._seen, self._ticking = -math.inf, False

    def look(self) -> float:
        """The time, and the gap since the last call; starts the thread."""
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

    # Not a method that calls it: the loop reads its clock a dozen times for each request.
    time = active_time


def run(main: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` on a :class:`SuspendAwareLoop`."""
    with asyncio.Runner(loop_factory=SuspendAwareLoop) as runner:
        return runner.run(main)
