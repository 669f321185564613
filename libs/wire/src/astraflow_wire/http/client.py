"""HTTP clients with deadlines, for calls to the dataflow.

A connection error or a 5xx is retried, with back-off, until the deadline of the call; a 4xx raises
:class:`Refused`. A truncated reply is a connection error. Deadlines count only time for which the
caller runs: after a stop it retries. With ``waits_for_room``, the time for which the dataflow
replies that the disk of its journal is full (507) is not counted either.
"""

from __future__ import annotations

import asyncio
import io
import math
import socket
import time
from collections import deque
from collections.abc import Iterator
from http.client import (
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
    RemoteDisconnected,
)
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from astraflow_core.errors import DeadlineExceeded, Refused, WireError
from astraflow_wire.decoding import from_json
from astraflow_wire.host.active_clock import active_time
from astraflow_wire.host.disk import LONGEST_WAIT_S
from astraflow_wire.http.auth import bearer
from astraflow_wire.http.tls import RunTls, UntrustedPeer, client_tls, why_untrusted
from astraflow_wire.messages import Message, decode, encode

if TYPE_CHECKING:
    import aiohttp

T = TypeVar("T")

MSGPACK = "application/msgpack"
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 0.5
"""A restarted service is up after a second or two: no caller should sleep much longer."""
_SENT_AT_ONCE = 1 << 16
"""Larger bodies are not copied into the request head (bytes)."""
NO_ROOM = 507
"""Status of a call that was carried out but not recorded, since the disk is full: retry until there
is room.
"""
NO_LENGTH = "a reply without a length, so a truncated reply would look complete"


class _Attempts:
    """The attempts of one call: the timeout of each, the pauses between them, and the error at the deadline."""

    def __init__(
        self,
        url: str,
        path: str,
        deadline_s: float,
        waits_for_room: bool,
        first_try_s: float = math.inf,
    ) -> None:
        self.url, self.path, self.deadline_s = url, path, deadline_s
        self._try_s = first_try_s
        self.end = active_time() + deadline_s
        self._latest = self.end + LONGEST_WAIT_S
        self._waits_for_room, self._had_no_room = waits_for_room, False
        self.trouble = "no answer"

    def __iter__(self) -> Iterator[float]:
        """Yields the timeout of each attempt (seconds), twice that of the previous one; raises at the deadline."""
        while (left := self.end - active_time()) > 0:
            yield min(left, self._try_s)
            self._try_s *= 2
        what = f"{self.path}: {self.trouble}"
        raise DeadlineExceeded(self.url, what, self.deadline_s, self._had_no_room)

    def pauses(self) -> Iterator[float]:
        pause = _FIRST_PAUSE_S
        while True:
            yield max(0.0, min(pause, self.end - active_time()))
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def answer(self, status: int, body: bytes) -> bytes | None:
        """The body of a 2xx; ``None`` if the call is to be retried."""
        if 200 <= status < 300:
            return body
        reason = _reason(body)
        if status < 500:
            raise Refused(status, reason)
        if status == NO_ROOM and self._waits_for_room:
            self.end, self._had_no_room = min(active_time() + self.deadline_s, self._latest), True
        self.trouble = f"{status} {reason}"
        return None


def _reason(body: bytes) -> str:
    text = body[:2000].decode(errors="replace")
    try:
        parsed = from_json(text, dict[str, Any], "no reason")
    except WireError:
        return text or "no reason given"
    return str(parsed.get("error") or parsed.get("detail") or parsed)


class _WholeLines(io.BufferedReader):
    """What a service sends, where the end of the stream ends no line: to :mod:`http.client` half a header is the last
    one of a complete head."""

    def readline(self, size: int | None = -1, /) -> bytes:
        """One line, or the first ``size`` bytes of it."""
        line = super().readline(size)
        if not line.endswith(b"\n") and len(line) != size:
            raise RemoteDisconnected("the reply ended within its head")
        return line


class _WholeReply(HTTPResponse):
    """A reply that is complete, or an error."""

    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp: io.BufferedReader = _WholeLines(self.fp.detach())

    def begin(self) -> None:
        """Read the head."""
        super().begin()
        if self.length is None and not self.chunked:
            raise HTTPException(NO_LENGTH)


class _AtOnce(HTTPConnection):
    """Sends the head of a request together with its body, so that the service is woken once."""

    response_class = _WholeReply
    _held: list[Any] | None = None

    def endheaders(self, message_body: Any = None, *, encode_chunked: bool = False) -> None:
        """Called by :meth:`request` with the whole body."""
        held: list[Any] = []
        self._held = held
        try:
            super().endheaders(message_body, encode_chunked=encode_chunked)
        finally:
            self._held = None
        if sum(len(data) for data in held) <= _SENT_AT_ONCE:
            held = [b"".join(held)]
        for data in held:
            self.send(data)

    def send(self, data: Any) -> None:
        """Send, or keep for :meth:`endheaders`."""
        if self._held is None:
            super().send(data)
        else:
            self._held.append(data)


class _AtOnceSecurely(_AtOnce, HTTPSConnection):
    """The same over TLS."""


class SyncClient:
    """Blocking client, for trainers and the launcher: keep-alive connections, one per concurrent
    call.

    On :mod:`http.client`, which reads a body of known length straight into one buffer. ``tls`` is that of the run,
    by default that of this process; calls raise :class:`UntrustedPeer` where it does not fit the service.
    """

    def __init__(
        self,
        base_url: str,
        token: str,
        *,
        waits_for_room: bool = False,
        tls: RunTls | None = None,
    ) -> None:
        self.base_url, self._tls = base_url, tls
        self._context, self._reached = client_tls(base_url, tls), False
        self._waits_for_room = waits_for_room
        self._url = urlsplit(base_url)
        self._headers = bearer(token)
        self._idle: deque[HTTPConnection] = deque()

    def _connection(self, timeout_s: float) -> HTTPConnection:
        try:
            connection = self._idle.pop()
        except IndexError:
            host, port = self._url.hostname or "", self._url.port
            connection = (
                _AtOnce(host, port, timeout=timeout_s)
                if self._context is None
                else _AtOnceSecurely(host, port, timeout=timeout_s, context=self._context)
            )
        connection.timeout = timeout_s
        if connection.sock is not None:
            connection.sock.settimeout(timeout_s)
        return connection

    def _request(
        self, method: str, path: str, body: bytes | None, timeout_s: float
    ) -> tuple[int, bytes]:
        headers = {**self._headers, "content-type": MSGPACK} if body is not None else self._headers
        connection = self._connection(timeout_s)
        try:
            connection.request(method, self._url.path.rstrip("/") + path, body, headers)
            response = connection.getresponse()
            content = response.read()
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        return response.status, content

    def _pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def _call(self, method: str, path: str, body: bytes | None, deadline_s: float) -> bytes:
        attempts = _Attempts(self.base_url, path, deadline_s, self._waits_for_room)
        pauses = attempts.pauses()
        for try_s in attempts:
            try:
                status, content = self._request(method, path, body, try_s)
            except (OSError, HTTPException) as error:
                ended = isinstance(error, ConnectionError)
                problem = why_untrusted(error, self.base_url, self._tls, ended, self._reached)
                if problem is not None:
                    raise UntrustedPeer(problem) from error
                attempts.trouble = f"{type(error).__name__}: {error}"
            else:
                self._reached = True
                if (answer := attempts.answer(status, content)) is not None:
                    return answer
            self._pause(next(pauses))
        raise AssertionError("attempts end by raising")

    def post(self, path: str, message: Message, expected: type[T], *, deadline_s: float) -> T:
        """Send a message and decode the reply."""
        return decode(self._call("POST", path, encode(message), deadline_s), expected)

    def post_bytes(self, path: str, body: bytes, expected: type[T], *, deadline_s: float) -> T:
        """Send a frame and decode the reply."""
        return decode(self._call("POST", path, body, deadline_s), expected)

    def post_for_bytes(self, path: str, message: Message, *, deadline_s: float) -> bytes:
        """Send a message and return the reply's bytes."""
        return self._call("POST", path, encode(message), deadline_s)

    def get_json(self, path: str, *, deadline_s: float) -> Any:
        """The JSON of a view."""
        answer = self._call("GET", path, None, deadline_s)
        return from_json(answer, Any, f"GET {path} gave no JSON")

    def close(self) -> None:
        """Close the connections."""
        while self._idle:
            self._idle.pop().close()


class AsyncClient:
    """The same for asyncio, over aiohttp: a RaaS pushes every group through it."""

    def __init__(self, base_url: str, token: str, *, waits_for_room: bool = False) -> None:
        import aiohttp  # 0.2 CPU seconds, which launchers and trainers save

        self.base_url = base_url
        self._context, self._reached = client_tls(base_url), False
        self._waits_for_room = waits_for_room
        self._aiohttp = aiohttp
        self._headers = bearer(token)
        self._session: aiohttp.ClientSession | None = None

    def _http(self) -> aiohttp.ClientSession:
        # A session belongs to the loop that it is made in.
        if self._session is None:
            connector = self._aiohttp.TCPConnector(ssl=self._context or True)
            self._session = self._aiohttp.ClientSession(
                self.base_url, headers=self._headers, connector=connector
            )
        return self._session

    async def _request(
        self, method: str, path: str, body: bytes | None, timeout_s: float
    ) -> tuple[int, bytes]:
        headers = {"content-type": MSGPACK} if body is not None else {}
        timeout = self._aiohttp.ClientTimeout(total=timeout_s)
        async with self._http().request(
            method, path, data=body, headers=headers, timeout=timeout
        ) as response:
            content = await response.read()
            ends = {"Content-Length", "Transfer-Encoding"} & response.headers.keys()
            if not ends and response.status != 204:
                raise self._aiohttp.ClientPayloadError(NO_LENGTH)
            return response.status, content

    async def _call(
        self,
        method: str,
        path: str,
        body: bytes | None,
        deadline_s: float,
        first_try_s: float = math.inf,
    ) -> bytes:
        attempts = _Attempts(self.base_url, path, deadline_s, self._waits_for_room, first_try_s)
        pauses = attempts.pauses()
        for try_s in attempts:
            try:
                status, content = await self._request(method, path, body, try_s)
            except (self._aiohttp.ClientError, TimeoutError) as error:
                ended = isinstance(error, self._aiohttp.ServerDisconnectedError)
                problem = await asyncio.to_thread(
                    why_untrusted, error.__cause__, self.base_url, None, ended, self._reached
                )
                if problem is not None:
                    raise UntrustedPeer(problem) from error
                attempts.trouble = f"{type(error).__name__}: {error}"
            else:
                self._reached = True
                if (answer := attempts.answer(status, content)) is not None:
                    return answer
            await asyncio.sleep(next(pauses))
        raise AssertionError("attempts end by raising")

    async def post(
        self,
        path: str,
        message: Message,
        expected: type[T],
        *,
        deadline_s: float,
        first_try_s: float = math.inf,
    ) -> T:
        """Send a message and decode the reply. The first attempt ends after ``first_try_s``, for a reply that is lost
        while the connection stays; each further one has twice as long, until the deadline."""
        body = encode(message)
        return decode(await self._call("POST", path, body, deadline_s, first_try_s), expected)

    async def post_bytes(
        self, path: str, body: bytes, expected: type[T], *, deadline_s: float
    ) -> T:
        """Send a frame and decode the reply."""
        return decode(await self._call("POST", path, body, deadline_s), expected)

    async def post_for_bytes(self, path: str, message: Message, *, deadline_s: float) -> bytes:
        """Send a message and return the reply's bytes."""
        return await self._call("POST", path, encode(message), deadline_s)

    async def get_json(self, path: str, *, deadline_s: float) -> Any:
        """The JSON of a view."""
        answer = await self._call("GET", path, None, deadline_s)
        return from_json(answer, Any, f"GET {path} gave no JSON")

    async def aclose(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
