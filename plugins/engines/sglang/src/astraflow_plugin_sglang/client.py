"""Calls to an SGLang server, each with a deadline; what goes wrong is named."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from astraflow_core.errors import AstraFlowError, DeadlineExceeded

_SHOWN = 500
_BUFFER = 1 << 24
"""Longest line of a stream, in bytes: each event repeats all that was sampled."""


class ServerSilent(AstraFlowError):
    """The server cannot be reached, or closed the connection without an answer."""


class ServerRefused(AstraFlowError):
    """The server answered with an error."""


class Client:
    """HTTP to the server at ``url``. Made and used on one loop."""

    def __init__(self, url: str, deadline_s: float) -> None:
        self.url = url.rstrip("/")
        self._deadline_s = deadline_s
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=deadline_s),
            read_bufsize=_BUFFER,
        )

    async def get(self, path: str) -> bytes:
        """The body of ``GET path``."""
        return await self._within(path, self._read("GET", path, None))

    async def post(self, path: str, body: Mapping[str, Any]) -> bytes:
        """The body of the answer to ``POST path``."""
        return await self._within(path, self._read("POST", path, body))

    async def ask(self, path: str, body: Mapping[str, Any]) -> bytes:
        """:meth:`post` without a deadline, for what lasts as long as it lasts; cancelling ends it."""
        return await self._read("POST", path, body)

    async def events(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[bytes, None]:
        """The events of a stream, as they come."""
        async with self._sent("POST", path, body) as response:
            async for line in response.content:
                if line.startswith(b"data:") and not line.startswith(b"data: [DONE]"):
                    yield line[5:]

    async def close(self) -> None:
        """Close every connection; what is on its way fails."""
        await self._http.close()

    async def _within(self, path: str, answer: Any) -> bytes:
        try:
            body: bytes = await asyncio.wait_for(answer, self._deadline_s)
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"the SGLang server at {self.url}", path, self._deadline_s
            ) from error
        return body

    async def _read(self, method: str, path: str, body: Mapping[str, Any] | None) -> bytes:
        async with self._sent(method, path, body) as response:
            return await response.read()

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
                    raise ServerRefused(f"{method} {path}: {response.status} {text}")
                yield response
        except (aiohttp.ClientError, ConnectionError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not self._http.closed:
                raise
            raise ServerSilent(
                f"{method} {path} at {self.url}: {type(error).__name__}: {error}"
            ) from error
