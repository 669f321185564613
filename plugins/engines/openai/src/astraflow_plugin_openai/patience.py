"""Retries while a server that is not ours is unreachable, overloaded or limits the rate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from astraflow_core.errors import AstraFlowError, EngineLost
from astraflow_serving.http import ServerRefused, ServerSilent

T = TypeVar("T")
_AGAIN = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
"""Statuses after which the same request may succeed: those that OpenAI's own client tries again."""
_FIRST_S, _MOST_S = 0.25, 8.0


def is_away(error: AstraFlowError) -> bool:
    """Whether the same request may succeed later."""
    return isinstance(error, ServerSilent) or (
        isinstance(error, ServerRefused) and error.status in _AGAIN
    )


async def patiently(call: Callable[[], Awaitable[T]], most_s: float) -> T:
    """Retry a call while the server is unavailable, after the time that it requests or from 0.25 s, doubling, up to 8
    s. Raises :class:`EngineLost` when the next try would come after ``most_s``."""
    give_up = time.monotonic() + most_s
    tries = 0
    while True:
        try:
            return await call()
        except (ServerSilent, ServerRefused) as error:
            if not is_away(error):
                raise
            asked = error.after_s if isinstance(error, ServerRefused) else None
            pause = min(_FIRST_S * 2.0**tries, _MOST_S) if asked is None else asked
            tries += 1
            if pause > give_up - time.monotonic():
                raise EngineLost(
                    f"gave up after {most_s:.0f} s and {tries} tries: {error}"
                ) from error
            await asyncio.sleep(pause)
