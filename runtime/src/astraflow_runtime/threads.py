"""Blocking calls off the event loop, in threads that never delay the exit of the process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(name: str, call: Callable[[], T]) -> T:
    """Run ``call`` in a daemon thread. If the caller is cancelled, the call continues and its
    result is dropped.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def settle(setter: Callable[[], None]) -> None:
        def unless_done() -> None:
            if not outcome.done():
                setter()

        if not loop.is_closed():
            loop.call_soon_threadsafe(unless_done)

    def work() -> None:
        try:
            value = call()
        except BaseException as error:  # noqa: BLE001 - raised again in the caller
            caught = error
            settle(lambda: outcome.set_exception(caught))
        else:
            settle(lambda: outcome.set_result(value))

    threading.Thread(target=work, name=name, daemon=True).start()
    return await outcome
