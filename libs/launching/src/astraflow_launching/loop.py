"""An event loop in a separate thread, for launchers whose methods are called from threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from astraflow_core.errors import DeadlineExceeded

T = TypeVar("T")
END_S = 10.0


class LoopThread:
    """Runs coroutines until :meth:`close`."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T], who: str, what: str, deadline_s: float) -> T:
        """The result of ``work``; :class:`DeadlineExceeded` if ``who`` does not complete it in time."""
        future = self.start(work)
        try:
            return future.result(deadline_s)
        except concurrent.futures.TimeoutError as error:
            if future.done():
                raise
            future.cancel()
            raise DeadlineExceeded(who, what, deadline_s) from error

    def start(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start ``work``."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Cancel what is left, and end the thread."""

        async def finish() -> None:
            own = asyncio.current_task()
            tasks = [task for task in asyncio.all_tasks() if task is not own]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=END_S) if tasks else None
            await self._loop.shutdown_default_executor()

        if self._loop.is_closed():
            return
        self.start(finish()).result(2 * END_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(END_S)
        self._loop.close()
