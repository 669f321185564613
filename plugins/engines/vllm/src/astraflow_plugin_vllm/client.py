"""Calls to a vLLM server, each with a deadline; what goes wrong is named."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from astraflow_core.errors import AstraFlowError, DeadlineExceeded

_SAMPLE = re.compile(rb"^(vllm:\w+)(?:\{[^}]*\})? ([-+.\deE]+|NaN)$", re.MULTILINE)
_SHOWN = 500
_IDLE_S = 1.0
"""A connection that was idle for longer is not used again: the server closes it after five seconds, and
a request that is sent at that moment would look like its death."""
_BUFFER = 1 << 22
"""Longest line of a stream, in bytes: what was sampled since the last, a few hundred bytes per token."""


class ServerSilent(AstraFlowError):
    """The server cannot be reached, or closed the connection without an answer."""


class ServerRefused(AstraFlowError):
    """The server answered with an error; ``status`` is the HTTP status."""

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        super().__init__(text)


class Client:
    """HTTP to the server at ``url``: ``http://HOST:PORT`` or ``unix:PATH``. Made and used on one loop."""

    def __init__(self, url: str, deadline_s: float) -> None:
        self.url = url
        self._deadline_s = deadline_s
        path = url.removeprefix("unix:")
        connector: aiohttp.BaseConnector
        if path != url:
            self._base = "http://vllm"
            connector = aiohttp.UnixConnector(path, limit=0, keepalive_timeout=_IDLE_S)
        else:
            self._base = url.rstrip("/")
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S)
        self._http = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=deadline_s),
            read_bufsize=_BUFFER,
        )

    async def get(self, path: str, deadline_s: float | None = None) -> bytes:
        """The body of ``GET path``."""
        return await self._within(deadline_s, path, self._read("GET", path, None))

    async def post(
        self, path: str, body: Mapping[str, Any] | None = None, deadline_s: float | None = None
    ) -> bytes:
        """The body of the answer to ``POST path``."""
        return await self._within(deadline_s, path, self._read("POST", path, body))

    async def ask(self, path: str, body: Mapping[str, Any]) -> bytes:
        """:meth:`post` without a deadline, for what lasts as long as it lasts, on a connection that is
        used again; cancelling ends it."""
        return await self._read("POST", path, body, keep=True)

    async def lines(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[bytes]:
        """The events of a stream, as they come."""
        async with self._sent("POST", path, body, keep=True) as response:
            async for line in response.content:
                if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                    yield line[6:]

    async def metrics(self) -> dict[str, float]:
        """The server's Prometheus samples of vLLM, summed over their labels."""
        values: dict[str, float] = {}
        for name, value in _SAMPLE.findall(await self.get("/metrics")):
            key = name.decode().removeprefix("vllm:")
            values[key] = values.get(key, 0.0) + float(value)
        return values

    async def close(self) -> None:
        """Close every connection; what is on its way fails."""
        await self._http.close()

    async def _within(self, deadline_s: float | None, path: str, answer: Any) -> bytes:
        seconds = self._deadline_s if deadline_s is None else deadline_s
        try:
            body: bytes = await asyncio.wait_for(answer, seconds)
        except TimeoutError as error:
            raise DeadlineExceeded(f"the vLLM server at {self.url}", path, seconds) from error
        return body

    async def _read(
        self, method: str, path: str, body: Mapping[str, Any] | None, keep: bool = False
    ) -> bytes:
        async with self._sent(method, path, body, keep) as response:
            return await response.read()

    @asynccontextmanager
    async def _sent(
        self, method: str, path: str, body: Mapping[str, Any] | None, keep: bool
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        data = None if body is None else msgspec.json.encode(body)
        headers = {"Content-Type": "application/json"}
        if not keep:
            # After an error of its own the server closes a connection without having said so.
            headers["Connection"] = "close"
        try:
            async with self._http.request(
                method, self._base + path, data=data, headers=headers
            ) as response:
                if response.status != 200:
                    text = (await response.read()).decode(errors="replace")[:_SHOWN]
                    raise ServerRefused(
                        response.status, f"{method} {path}: {response.status} {text}"
                    )
                yield response
        except (aiohttp.ClientError, ConnectionError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not self._http.closed:
                raise
            raise ServerSilent(
                f"{method} {path} at {self.url}: {type(error).__name__}: {error}"
            ) from error
