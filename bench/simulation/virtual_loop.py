"""An event loop whose time advances only when there is nothing left to do, and blocking code that runs in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar

import greenlet  # type: ignore[import-untyped]

T = TypeVar("T")


class Deadlock(Exception):
    """All tasks wait, and no timer is pending."""


class _Timers:
    """In the place of a selector: there are no sockets, so the time until the next timer passes at once."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        """Let ``timeout`` seconds pass."""
        if timeout is None:
            raise Deadlock("everybody waits, and nobody has a deadline")
        self._loop.now += timeout
        return []

    def close(self) -> None:
        """Nothing to close."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs callbacks in the order in which they are due. What is given to an executor runs at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._selector = _Timers(self)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        """The virtual time, in seconds."""
        return self.now

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Call it in this thread."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - as an executor does
            future.set_exception(error)
        return future

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """No other thread wakes it."""


async def run_blocking(function: Callable[[], T]) -> T:
    """The result of blocking code that waits with :func:`wait_for` only."""
    running = greenlet.greenlet(function)
    result = running.switch()
    while not running.dead:
        try:
            value = await result
        except BaseException as error:  # noqa: BLE001 - raised where it belongs
            result = running.throw(error)
        else:
            result = running.switch(value)
    return result  # type: ignore[no-any-return]


def wait_for(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of ``coroutine``, within a function that :func:`run_blocking` runs."""
    hub = greenlet.getcurrent().parent
    assert hub is not None
    return hub.switch(coroutine)  # type: ignore[no-any-return]
