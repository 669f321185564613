"""Calls to an OpenAI-compatible server; what goes wrong is named."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from astraflow_core.errors import AstraFlowError, DeadlineExceeded

_SHOWN = 500
_AGAIN = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
"""Statuses after which the same request may succeed: those that OpenAI's own client tries again."""
_BUFFER = 1 << 22
"""Longest line of a stream, in bytes."""


class ServerAway(AstraFlowError):
    """The server cannot be reached, breaks off, or asks to be tried again after ``after_s``."""

    def __init__(self, text: str, after_s: float | None = None) -> None:
        self.after_s = after_s
        super().__init__(text)


class ServerRefused(AstraFlowError):
    """The server answered that the request is wrong."""


class Client:
    """HTTP to the server at ``url``. ``stall_s``: the longest silence. Made and used on one loop."""

    def __init__(self, url: str, key: str | None, stall_s: float) -> None:
        self.url = url.rstrip("/")
        self._stall_s = stall_s
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=stall_s, sock_read=stall_s),
            headers={} if key is None else {"Authorization": f"Bearer {key}"},
            read_bufsize=_BUFFER,
        )

    async def get(self, path: str) -> bytes:
        """The body of ``GET path``."""
        async with self._sent("GET", path, None) as response:
            return await response.read()

    async def post(self, path: str, body: Mapping[str, Any]) -> bytes:
        """The body of the answer to ``POST path``."""
        async with self._sent("POST", path, body) as response:
            return await response.read()

    async def events(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[bytes, None]:
        """The events of a stream, as they come. Not every server ends it with ``[DONE]``."""
        async with self._sent("POST", path, body) as response:
            async for line in response.content:
                if line.startswith(b"data:"):
                    event = line[5:].strip()
                    if event == b"[DONE]":
                        return
                    yield event

    async def close(self) -> None:
        """Close every connection; what is on its way fails."""
        await self._http.close()

    @asynccontextmanager
    async def _sent(
        self, method: str, path: str, body: Mapping[str, Any] | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        data = None if body is None else msgspec.json.encode(body)
        headers = {"Content-Type": "application/json"}
        try:
            async with self._http.request(
                method, self.url + path, data=data, headers=headers
            ) as response:
                if response.status != 200:
                    text = (await response.read()).decode(errors="replace")[:_SHOWN]
                    said = f"{method} {path} at {self.url}: {response.status} {text}"
                    if response.status in _AGAIN:
                        raise ServerAway(said, _seconds(response.headers.get("Retry-After")))
                    raise ServerRefused(said)
                yield response
        except (TimeoutError, aiohttp.ServerTimeoutError) as error:
            raise DeadlineExceeded(
                f"the server at {self.url}", f"{method} {path}", self._stall_s
            ) from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise ServerAway(
                f"{method} {path} at {self.url}: {type(error).__name__}: {error}"
            ) from error


def _seconds(header: str | None) -> float | None:
    """``Retry-After`` in seconds; dates are as good as nothing said."""
    try:
        return None if header is None else max(0.0, float(header))
    except ValueError:
        return None


async def wait_before(attempt: int, error: ServerAway, left_s: float) -> None:
    """Sleep before the next attempt, doubling from 0.25 s to 8 s unless the server says how long. Raises
    ``error`` if there is no time left for it."""
    pause = min(0.25 * 2.0**attempt, 8.0) if error.after_s is None else error.after_s
    if pause > left_s:
        raise error
    await asyncio.sleep(pause)
