"""Accepts HTTP connections on a socket within limits: uvicorn's protocol with a bound on heads and deadlines."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from astraflow_wire.http.access import Access
from astraflow_wire.http.browser_sessions import BrowserSessions
from astraflow_wire.http.calls import REPLY
from astraflow_wire.http.connection_limits import (
    ACCEPT_AGAIN_S,
    HEAD_S,
    MAX_HEAD,
    MAX_HEADERS,
    NO_DESCRIPTORS,
    ConnectionLimits,
)
from astraflow_wire.http.tls import HANDSHAKE, PLAIN_ANSWER

BODY_STALLS_S = 60.0
"""A request that receives no data for so long is dropped."""
MOST_UNREAD = 1 << 18
"""So many bytes of a body that the application has not read stop the reading of its connection until it does. One read
brings as many, and to stop and start costs as much as to parse a request."""
MOST_PIPELINED = 8
_AT_ONCE = 16
"""The most connections accepted before earlier requests are read: the newest replace the oldest."""
_CHECK_EVERY_S = 1.0
_LENGTH = b"content-length"
_quiet = logging.getLogger("uvicorn.error.connections")
_quiet.setLevel(logging.ERROR)  # malformed requests are unauthenticated and may be frequent


class LimitedProtocol(HttpToolsProtocol):
    """One connection. A head over :data:`MAX_HEAD` bytes or with more than :data:`MAX_HEADERS` headers is answered 431."""

    def __init__(
        self,
        config: Config,
        state: ServerState,
        limits: ConnectionLimits[LimitedProtocol],
        access: Access,
        sessions: BrowserSessions | None = None,
    ) -> None:
        super().__init__(config, state, {})
        self.logger, self.headers = _quiet, []
        self._limits, self._access, self._sessions = limits, access, sessions
        self._authenticated = False
        self._status = 400
        # Bytes since the parser last completed an item: a head, a piece of a body, the end of a
        # request.
        self._unparsed = 0
        self.since = self.loop.time()
        """When the newest of what it waits for began: a head, a body, or the next request."""
        self._incomplete: tuple[RequestResponseCycle, Any] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit the connection, perhaps in place of another."""
        super().connection_made(transport)
        address = self.client[0] if self.client else ""
        closing = self._limits.admit(self, address, transport.get_extra_info("socket").fileno())
        if closing is self:
            self._answer(503)
        elif closing is not None:
            closing.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection."""
        self._limits.leave(self)
        super().connection_lost(exc)
        self._begin_incomplete()  # it logs that its caller is gone

    def data_received(self, data: bytes) -> None:
        """Parse it, unless a head becomes too long."""
        if not self._unparsed:
            self.since = self.loop.time()
        self._unparsed += len(data)
        super().data_received(data)
        trailing = len(self.headers) > MAX_HEADERS
        if (self._unparsed > MAX_HEAD or trailing) and not self.transport.is_closing():
            self._answer(431)

    def on_headers_complete(self) -> None:
        """Begin the request. :meth:`send_400_response` replies to errors raised here."""
        if self._unparsed > MAX_HEAD or len(self.headers) > MAX_HEADERS:
            self._check_head()
        if len(self.pipeline) >= MOST_PIPELINED:
            raise ValueError("too many requests at once")
        self._unparsed = 0
        if not self._authenticated and self._shows_who_it_is():
            self._authenticated = True
            self._limits.authenticated(self)
        super().on_headers_complete()
        if (cycle := self._request()) is not None:
            extensions: Any = {REPLY: partial(self._reply, cycle)}
            cycle.scope["extensions"] = extensions

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Call the application; with a short body once it is complete, since to wait for it and to be woken costs as much as
        to parse a request."""
        if cycle.more_body and self._is_short(cycle):
            self._incomplete = cycle, app
        else:
            super()._start_asgi_task(cycle, app)

    def _is_short(self, cycle: RequestResponseCycle) -> bool:
        """Whether the body of a request is one that :meth:`on_body` keeps and that does not stop the reading."""
        if not self._authenticated or cycle.waiting_for_100_continue:
            return False
        length = next((value for name, value in cycle.scope["headers"] if name == _LENGTH), b"")
        return length.isdigit() and int(length) <= MOST_UNREAD

    def _reply(self, cycle: RequestResponseCycle, media_type: bytes, body: bytes) -> bool:
        """Answer a request with a status of 200, in one write; false if that has to be done step by step."""
        if (
            cycle.response_started
            or cycle.disconnected
            or not cycle.keep_alive
            or self.flow.write_paused
        ):
            return False
        cycle.response_started = cycle.response_complete = True
        lines = [b"%b: %b\r\n" % header for header in self.server_state.default_headers]
        self.transport.write(
            b"HTTP/1.1 200 OK\r\n%bcontent-length: %d\r\ncontent-type: %b\r\n\r\n%b"
            % (b"".join(lines), len(body), media_type, body)
        )
        cycle.message_event.set()
        cycle.on_response()
        return True

    def on_response_complete(self) -> None:
        """The end of a response. :meth:`Listener._close_stalled` closes idle connections: a timer for each response costs
        more than the look once a second."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self.since = self.loop.time()

    def is_idle(self, now: float) -> bool:
        """Whether it has waited too long for its next request."""
        cycle = self._request()
        done = cycle is not None and cycle.response_complete and not self.pipeline
        return done and not self._unparsed and now - self.since > self.timeout_keep_alive

    def _shows_who_it_is(self) -> bool:
        headers = dict(self.headers)
        if self._access.grant(headers.get(b"authorization")) is not None:
            return True
        if self._sessions is None:
            return False
        method, (path, _, query) = self.parser.get_method().decode(), self.url.partition(b"?")
        return self._sessions.admits(method, path.decode("latin-1"), query, headers.get(b"cookie"))

    def on_body(self, body: bytes) -> None:
        """A piece of the body; discarded for an unauthenticated request."""
        self._unparsed = 0
        cycle: Any = self.cycle
        if not self._authenticated or cycle.response_complete:
            return
        if not cycle.body:
            # Bodies mostly come in one piece: the application gets that one, not a copy of a copy.
            cycle.body = body
        else:
            if isinstance(cycle.body, bytes):
                cycle.body = bytearray(cycle.body)
            cycle.body += body
        if len(cycle.body) > MOST_UNREAD:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        """The end of the request."""
        self._unparsed = 0
        super().on_message_complete()
        self._begin_incomplete()

    def _begin_incomplete(self) -> None:
        if self._incomplete is not None:
            (cycle, app), self._incomplete = self._incomplete, None
            super()._start_asgi_task(cycle, app)

    def send_400_response(self, msg: str) -> None:
        """Reply to a request that cannot be parsed or is rejected during parsing."""
        self._answer(self._status)

    def has_stalled(self, now: float) -> bool:
        """Whether a head takes too long, or a body stalls."""
        if self._unparsed:
            return now - self.since > HEAD_S
        cycle = self._request()
        begun = cycle is not None and cycle.more_body and not cycle.response_complete
        return begun and not self.flow.read_paused and now - self.since > BODY_STALLS_S

    def _request(self) -> RequestResponseCycle | None:
        """The newest one, if there was one."""
        return self.cycle

    def _check_head(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > MAX_HEAD or len(self.headers) > MAX_HEADERS:
            self._status = 431
            raise ValueError("header section too long")

    def _answer(self, status: int) -> None:
        cycle = self._request()
        if cycle is None or cycle.response_complete:
            reason = HTTPStatus(status).phrase
            if status == 431:
                reason += f": at most {MAX_HEAD} bytes and {MAX_HEADERS} headers"
            body = b'{"error":"' + reason.encode() + b'"}'
            head = (
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()


class Listener:
    """Accepts for the running event loop, from construction to :meth:`close`. When there are no descriptors it tries
    again after a pause. With ``tls``, a connection counts once its handshake is done, which has ``HEAD_S``."""

    def __init__(
        self,
        listening: socket.socket,
        protocol: Callable[[], LimitedProtocol],
        limits: ConnectionLimits[LimitedProtocol],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._socket, self._protocol, self._limits, self._tls = listening, protocol, limits, tls
        self._loop = asyncio.get_running_loop()
        self._starting: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._resume()
        self._timer = self._loop.call_later(_CHECK_EVERY_S, self._close_stalled)

    def close(self) -> None:
        """Accept no more; closing twice is allowed."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._socket)
            self._timer.cancel()

    async def wait_closed(self) -> None:
        """Return at once: connections are counted by the server."""

    def _resume(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in NO_DESCRIPTORS:
                    raise
                self._limits.warn("no connection can be accepted: %s", error.strerror)
                self._loop.remove_reader(self._socket)
                self._loop.call_later(ACCEPT_AGAIN_S, self._resume)
                return
            connection.setblocking(False)
            task = self._loop.create_task(self._serve(connection))
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)

    async def _serve(self, connection: socket.socket) -> None:
        try:
            handshake_s = None if self._tls is None else HEAD_S
            if self._tls is not None and not await self._begins_with_tls(connection):
                connection.close()
                return
            await self._loop.connect_accepted_socket(
                self._protocol, connection, ssl=self._tls, ssl_handshake_timeout=handshake_s
            )
        except OSError as error:
            connection.close()
            self._limits.warn("a connection was closed at once: %s", error.strerror)

    async def _begins_with_tls(self, connection: socket.socket) -> bool:
        """Whether a peer begins a handshake; one that speaks plain HTTP gets an error reply."""
        arrived = asyncio.Event()
        self._loop.add_reader(connection, arrived.set)
        try:
            await asyncio.wait_for(arrived.wait(), HEAD_S)
        finally:
            self._loop.remove_reader(connection)
        first = connection.recv(1, socket.MSG_PEEK)
        if first and first[0] != HANDSHAKE:
            connection.send(PLAIN_ANSWER)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(MAX_HEAD)  # what is unread when a socket closes resets the answer
            return False
        return bool(first)

    def _close_stalled(self) -> None:
        now = self._loop.time()
        late = self._limits.overdue()
        shortest_s = min(HEAD_S, BODY_STALLS_S)
        for each in self._limits.connections():
            if now - each.since <= shortest_s:  # of a thousand connections most
                continue
            if each.has_stalled(now):
                late.append(each)
            elif each.is_idle(now):
                each.timeout_keep_alive_handler()
        for connection in late:
            connection.transport.abort()
        self._timer = self._loop.call_later(_CHECK_EVERY_S, self._close_stalled)
