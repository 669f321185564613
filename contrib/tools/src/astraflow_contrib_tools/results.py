"""What a model is shown of a tool: in time, and not too long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


class ToolError(Exception):
    """What a tool answers instead of a result; the model is shown it. Whatever else a call raises fails the episode."""


async def in_time(result: Awaitable[T], deadline_s: float) -> T:
    """The result; :class:`ToolError` if there is none within ``deadline_s``."""
    late = asyncio.timeout(deadline_s)
    try:
        async with late:
            return await result
    except TimeoutError:
        if not late.expired():
            raise
        raise ToolError(f"no result within {deadline_s:g} s") from None
