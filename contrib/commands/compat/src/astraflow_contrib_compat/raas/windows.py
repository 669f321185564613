"""Evaluation windows of the public protocol: while one is open, no training task runs on the RaaS."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable


class EvaluationWindows:
    """Lets either training or evaluation tasks through. A window opens once an evaluation task has arrived and no training
    task is running, and closes after the last evaluation task. ``opened`` and ``closed`` notify the RaaS; if ``opened`` raises, the task
    that asked fails."""

    def __init__(
        self, opened: Callable[[], Awaitable[None]], closed: Callable[[], Awaitable[None]]
    ) -> None:
        self._opened, self._closed = opened, closed
        self._training = self._evaluating = self._waiting = 0
        self._open = False
        self._changed = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def training(self) -> AsyncIterator[None]:
        """Wait until no evaluation is under way or wanted."""
        async with self._changed:
            await self._changed.wait_for(lambda: not (self._waiting or self._open))
            self._training += 1
        try:
            yield
        finally:
            self._training -= 1
            await self._notify()

    @contextlib.asynccontextmanager
    async def evaluation(self) -> AsyncIterator[None]:
        """Wait until no training task runs; the window is open within the context."""
        self._waiting += 1
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: not self._training)
                if not self._open:
                    await self._opened()
                    self._open = True
                self._evaluating += 1
        finally:
            self._waiting -= 1
            await self._notify()
        try:
            yield
        finally:
            self._evaluating -= 1
            if not self._evaluating and not self._waiting:
                async with self._changed:
                    if self._open and not self._evaluating:
                        self._open = False
                        await self._closed()
            await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
