"""An HTTP/1.1 server with a thread per connection, within limits: what publishers, relays and desks listen with."""

from __future__ import annotations

import contextlib
import http.client
import io
import logging
import socket
import socketserver
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler
from typing import Any

from astraflow_core.errors import Refused, UserError
from astraflow_wire.http.access import shares
from astraflow_wire.http.auth import is_loopback
from astraflow_wire.http.connection_limits import (
    ACCEPT_AGAIN_S,
    HEAD_S,
    MAX_HEAD,
    NO_DESCRIPTORS,
    ConnectionLimits,
    Limits,
)
from astraflow_wire.http.listening import cannot_listen
from astraflow_wire.http.tls import HANDSHAKE, PLAIN_ANSWER, server_tls

CLOSE_S = 5.0
LOOK_EVERY_S = 0.2
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_log = logging.getLogger(__name__)


class ThreadedServer(socketserver.ThreadingTCPServer):
    """Listens from construction on, in its own threads, until :meth:`close`. ``who`` is for errors and the log.

    With the TLS of this process it speaks HTTPS only. Raises :class:`UserError` if it cannot listen, or shall do so
    without a ``token`` beyond loopback.
    """

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 1024

    def __init__(
        self,
        who: str,
        token: str,
        host: str,
        port: int,
        handler: type[Handler],
        limits: Limits | None = None,
    ) -> None:
        if ":" in host:
            self.address_family = socket.AF_INET6
        if not token and not is_loopback(host):
            raise UserError(f"{who} refuses to listen on {host!r} without a token")
        self.token, self._tls = token, server_tls(host)
        self.limits: ConnectionLimits[socket.socket] = ConnectionLimits(
            limits or Limits.of_threads(), who
        )
        try:
            super().__init__((host, port), handler)
        except OSError as error:
            raise UserError(f"{who} {cannot_listen(host, port, error)}") from error
        self._thread = threading.Thread(
            target=self.serve_forever, args=(LOOK_EVERY_S,), name="weights", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self.server_address[1])

    def url(self, host: str, port: int | None = None) -> str:
        """Where others find it, or a server of the same run with another ``port``."""
        shown = f"[{host}]" if ":" in host else host
        return f"{'http' if self._tls is None else 'https'}://{shown}:{port or self.port}"

    def close(self) -> None:
        """Stop listening and break every connection; closing twice is allowed."""
        if self._thread.is_alive():
            self.shutdown()
            self._thread.join(CLOSE_S)
        self.server_close()
        for connection in self.limits.connections():
            _break_off(connection)

    def get_request(self) -> tuple[Any, Any]:
        """Accept; without descriptors, pause."""
        try:
            connection, address = super().get_request()
            if self._tls is not None:  # the handshake is up to the thread of the connection
                connection = self._tls.wrap_socket(
                    connection, server_side=True, do_handshake_on_connect=False
                )
            return connection, address
        except OSError as error:
            if error.errno in NO_DESCRIPTORS:
                self.limits.warn("no connection can be accepted: %s", error.strerror)
                time.sleep(ACCEPT_AGAIN_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start the thread of a connection that has a place."""
        closing = self.limits.admit(request, client_address[0], request.fileno())
        if closing is not None and closing is not request:
            _break_off(closing)
        elif closing is not None:
            with contextlib.suppress(OSError):
                closing.settimeout(0.0)  # a fresh socket has room for it
                closing.sendall(_BUSY)
            self.shutdown_request(closing)
            return
        super().process_request(request, client_address)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Answer the requests of a connection, after its handshake."""
        if isinstance(request, ssl.SSLSocket) and not self._shook_hands(request):
            return
        super().finish_request(request, client_address)

    def _shook_hands(self, request: ssl.SSLSocket) -> bool:
        request.settimeout(HEAD_S)
        try:
            first = socket.socket.recv(request, 1, socket.MSG_PEEK)
            if first and first[0] != HANDSHAKE:
                socket.socket.sendall(request, PLAIN_ANSWER)
                socket.socket.recv(request, MAX_HEAD)  # what is unread would reset the answer
                return False
            request.do_handshake()
        except OSError as error:
            self.limits.warn("a connection was closed at once: %s", error)
            return False
        return True

    def service_actions(self) -> None:
        """Break off connections that have shown no token for too long; called several times a second."""
        for connection in self.limits.overdue():
            _break_off(connection)

    def shutdown_request(self, request: Any) -> None:
        """Forget a connection and close it."""
        self.limits.leave(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """What goes wrong here belongs in the log; that a peer goes away does not come here."""
        _log.warning("connection of %s failed", client_address[0], exc_info=True)


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection; :meth:`authorize` must come first in each."""

    server: ThreadedServer
    raw_requestline: bytes
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle(self) -> None:
        """Answer until the peer goes away."""
        try:
            super().handle()
        except (ConnectionError, BlockingIOError, TimeoutError) as error:
            _log.debug("%s disconnected: %s", self.client_address[0], error)

    def parse_request(self) -> bool:
        """Parse a head of at most :data:`MAX_HEAD` bytes; answers 431 to a longer one."""
        whole = self.rfile
        head = _Head(whole, MAX_HEAD - len(self.raw_requestline))
        self.rfile = head  # type: ignore[assignment]
        try:
            return super().parse_request()
        finally:
            self.rfile = whole

    def authorize(self) -> None:
        """Raise :class:`Refused` (401) unless the request has the token, or one that brings it or from which it follows."""
        given = self.headers.get("Authorization", "").encode("latin-1", "replace")
        scheme, _, shown = given.partition(b" ")
        if self.server.token and not (scheme == b"Bearer" and shares(shown, self.server.token)):
            raise Refused(401, "missing or wrong bearer token")
        self.server.limits.authenticated(self.request)

    def log_message(self, format: str, *args: Any) -> None:
        """Log on level debug."""
        _log.debug("%s " + format, self.client_address[0], *args)


class _Head:
    """Lines of a file up to a number of bytes."""

    def __init__(self, file: io.BufferedIOBase, most: int) -> None:
        self._file, self._left = file, most

    def readline(self, size: int = -1) -> bytes:
        line = self._file.readline(size)
        self._left -= len(line)
        if self._left < 0:
            raise http.client.LineTooLong("head")
        return line


def _break_off(connection: socket.socket) -> None:
    """Make its pending reads and writes fail; its thread closes it."""
    with contextlib.suppress(OSError):
        # That of ssl first forgets its keys: what the thread still sends would go out in clear text.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
