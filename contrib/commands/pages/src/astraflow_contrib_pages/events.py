"""What changes in a run, as server-sent events (WHATWG HTML, "Server-sent events")."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

EVERY_S = 1.0
KEEP_ALIVE_S = 15.0
LONGEST_S = 3600.0
"""Duration of one stream; a browser opens the next one automatically."""


async def changes(
    look: Callable[[], Awaitable[dict[str, Any]]], ends: float
) -> AsyncIterator[bytes]:
    """What ``look`` gives each second, whenever it is not as before; until it says that the run is no
    longer ``running`` and that its ``share`` of what is read is 1, the login ends (seconds since 1970), or an hour is over. A comment every 15 s shows that the line is
    open."""
    before, said_at = "", time.monotonic()
    until = time.monotonic() + min(LONGEST_S, max(0.0, ends - time.time()))
    while time.monotonic() < until:
        found = await look()
        text = json.dumps(found)
        if text != before:
            before, said_at = text, time.monotonic()
            yield f"event: change\ndata: {text}\n\n".encode()
        elif time.monotonic() - said_at > KEEP_ALIVE_S:
            said_at = time.monotonic()
            yield b": nothing new\n\n"
        if found.get("state") != "running" and found.get("share", 1) == 1:
            yield b"event: end\ndata: {}\n\n"
            return
        await asyncio.sleep(EVERY_S)
