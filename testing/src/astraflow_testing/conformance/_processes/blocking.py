"""Measures how long a coroutine blocks the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


def longest_block(play: Callable[[], Coroutine[Any, Any, Any]]) -> float:
    """The longest time in which the event loop stood still while ``play()`` was awaited."""

    async def watched() -> float:
        loop, longest = asyncio.get_running_loop(), 0.0
        playing = asyncio.create_task(play())
        last = loop.time()
        while not playing.done():
            await asyncio.sleep(0.005)
            longest, last = max(longest, loop.time() - last), loop.time()
        await playing
        return longest

    return asyncio.run(watched())


def always_blocked(play: Callable[[], Coroutine[Any, Any, Any]], longest_s: float) -> float:
    """For how long ``play()`` blocks the event loop at least, each time that it is tried; 0 if it once did not for
    ``longest_s``, since a machine that is busy may hold up anybody."""
    least = longest_block(play)
    for _ in range(2):
        if least <= longest_s:
            return 0.0
        least = min(least, longest_block(play))
    return least if least > longest_s else 0.0
