"""Waiting for an engine host, not counting the time for which its process was stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

_LOOK_S = 0.1


async def ended(
    futures: Iterable[asyncio.Future[Any]], deadline_s: float, stopped_s: Callable[[], float]
) -> bool:
    """Wait until all ``futures`` are done or one has failed; ``False`` if that takes longer than
    ``deadline_s`` plus the growth of ``stopped_s()``, a count of seconds.
    """
    loop = asyncio.get_running_loop()
    pending = set(futures)
    end = loop.time() + deadline_s - stopped_s()
    left = deadline_s
    while pending and left > 0:
        done, pending = await asyncio.wait(
            pending, timeout=max(left, _LOOK_S), return_when=asyncio.FIRST_EXCEPTION
        )
        if any(future.cancelled() or future.exception() is not None for future in done):
            return True
        left = end + stopped_s() - loop.time()
    return not pending
