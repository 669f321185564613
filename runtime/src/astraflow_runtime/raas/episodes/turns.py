"""Gives the event loop a turn between two calls of user code, after such code has blocked it."""

from __future__ import annotations

import asyncio

from astraflow_wire.host.active_clock import active_time

_CAREFUL_S = 60.0
_TURN_S = 0.01


class Turns:
    """Many episodes may be ready in one turn of the loop, and each would block it again before the
    first block is reported. For a minute after a block, each therefore runs in a separate turn.
    """

    def __init__(self) -> None:
        self._until_s = 0.0
        self._lock = asyncio.Lock()

    def was_blocked(self) -> None:
        """The loop was blocked just now."""
        self._until_s = active_time() + _CAREFUL_S

    async def __call__(self) -> None:
        """Wait for a turn; returns at once if the loop was not blocked recently."""
        if self._until_s and active_time() < self._until_s:
            async with self._lock:
                await asyncio.sleep(_TURN_S)
