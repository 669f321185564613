"""Calls to an inference server, each with a deadline; what goes wrong is named."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from astraflow_core.errors import AstraFlowError, DeadlineExceeded

_SHOWN = 500
_IDLE_S = 1.0
"""A connection that was idle for longer is not used again: servers close it after some seconds, and a
request that is sent at that moment would look like their death."""
_BUFFER = 1 << 24
"""Longest line of a stream, in bytes; some servers repeat in each event all that was sampled."""


class ServerSilent(AstraFlowError):
    """The server cannot be reached, or closed the connection without an answer."""


class ServerRefused(AstraFlowError):
    """The server answered with an error: ``status`` is the HTTP status, ``after_s`` the seconds after which
    it wants to be asked again."""

    def __init__(self, status: int, text: str, after_s: float | None = None) -> None:
        self.status = status
        self.after_s = after_s
        super().__init__(text)


class ServerClient:
    """HTTP to the server at ``url``: ``http://HOST:PORT/…`` or ``unix:PATH``. Made and used on one loop.

    ``name`` is for messages. ``stall_s`` is the longest silence in the middle of an answer, if there is one.
    """

    def __init__(
        self,
        name: str,
        url: str,
        deadline_s: float,
        stall_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._name = name
        self._deadline_s = deadline_s
        self._stall_s = stall_s
        path = url.removeprefix("unix:")
        connector: aiohttp.BaseConnector
        if path != url:
            self._base = "http://server"
            connector = aiohttp.UnixConnector(path, limit=0, keepalive_timeout=_IDLE_S)
        else:
            self._base = self.url
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S)
        self._http = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=deadline_s, sock_read=stall_s),
            headers=headers,
            read_bufsize=_BUFFER,
        )

    async def get(self, path: str, deadline_s: float | None = None) -> bytes:
        """The body of ``GET path``."""
        return await self._call_with_deadline(deadline_s, "GET", path, None)

    async def post(
        self, path: str, body: Mapping[str, Any] | None = None, deadline_s: float | None = None
    ) -> bytes:
        """The body of the answer to ``POST path``."""
        return await self._call_with_deadline(deadline_s, "POST", path, body)

    async def ask(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> bytes:
        """:meth:`post` without a deadline, for calls of unbounded duration, on a connection
        that is reused; cancelling ends it."""
        async with self._sent("POST", path, body, keep=True, more=headers) as response:
            return await response.read()

    async def events(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[bytes, None]:
        """The events of a stream, as they come. Not every server ends it with ``[DONE]``."""
        async with self._sent("POST", path, body, keep=True, more=headers) as response:
            async for line in response.content:
                event = line[5:].strip() if line.startswith(b"data:") else b""
                if event and event != b"[DONE]":
                    yield event

    async def close(self) -> None:
        """Close every connection; what is on its way fails."""
        await self._http.close()

    async def _call_with_deadline(
        self, deadline_s: float | None, method: str, path: str, body: Mapping[str, Any] | None
    ) -> bytes:
        seconds = self._deadline_s if deadline_s is None else deadline_s
        try:
            # Not wait_for, which until Python 3.12 may swallow a cancellation.
            async with (
                asyncio.timeout(seconds),
                self._sent(method, path, body, keep=False) as response,
            ):
                return await response.read()
        except TimeoutError as error:
            raise DeadlineExceeded(f"the {self._name} at {self.url}", path, seconds) from error

    @asynccontextmanager
    async def _sent(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        keep: bool,
        more: Mapping[str, str] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        data = None if body is None else msgspec.json.encode(body)
        headers = {"Content-Type": "application/json", **(more or {})}
        if not keep:
            # After an internal error a server may close a connection without announcing it.
            headers["Connection"] = "close"
        try:
            async with self._http.request(
                method, self._base + path, data=data, headers=headers
            ) as response:
                if response.status != 200:
                    text = (await response.read()).decode(errors="replace")[:_SHOWN]
                    raise ServerRefused(
                        response.status,
                        f"{method} {path} at {self.url}: {response.status} {text}",
                        _seconds(response.headers.get("Retry-After")),
                    )
                yield response
        except aiohttp.SocketTimeoutError as error:
            raise DeadlineExceeded(
                f"the {self._name} at {self.url}", f"{method} {path}", self._stall_s or 0.0
            ) from error
        except (aiohttp.ClientError, ConnectionError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not self._http.closed:
                raise
            raise ServerSilent(
                f"{method} {path} at {self.url}: {type(error).__name__}: {error}"
            ) from error


def _seconds(header: str | None) -> float | None:
    """``Retry-After`` in seconds; dates are as good as nothing said."""
    try:
        return None if header is None else max(0.0, float(header))
    except ValueError:
        return None
