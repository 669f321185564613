"""Serves versions over HTTP/1.1 from threads and plain sockets (2.5 times an event loop's throughput).

``GET /v1/weights/POLICY/VERSION/manifest`` (msgpack), ``…/data`` (the file) and ``…/objects/NAME`` (bytes
that belong to the version), with or without ``Range``;
``DELETE …/readers/READER`` ends the lease that a request with the header ``AstraFlow-Reader`` took.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import re
import socket
import socketserver
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any

from astraflow_core.errors import Refused, UserError
from astraflow_core.weights.connection import set_patience
from astraflow_core.weights.part import Part
from astraflow_core.weights.store import Held, Store

READER_HEADER = "AstraFlow-Reader"
RELAY_HEADER = "AstraFlow-Relay"
"""Of a request for a manifest: the port on which the reader will serve others."""
FROM_HEADER = "AstraFlow-From"
"""Of the answer: the address of the relay that the reader should fetch from."""
CACHE = "public, max-age=31536000, immutable"
MAX_CONNECTIONS = 512
IDLE_S = 60.0
"""A connection that moves no byte for so long is closed."""
_PIECE = 1 << 20
_ROUTE = re.compile(
    r"/v1/weights/(?P<policy>[a-z0-9_]+)/(?P<version>\d{1,18})"
    r"/(?:(?P<what>manifest|data|objects/(?P<object>[a-z0-9][a-z0-9._-]{0,95}))|readers/(?P<reader>[\w-]{1,64}))"
)
_PORT = re.compile(r"[1-9]\d{0,4}")
_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{0,18})")
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_log = logging.getLogger(__name__)


class WeightServer(socketserver.ThreadingTCPServer):
    """Listens from construction on, in threads of its own, until :meth:`close`."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, stores: Mapping[str, Store], token: str, host: str, port: int) -> None:
        if ":" in host:
            self.address_family = socket.AF_INET6
        if not token and not _is_loopback(host):
            raise UserError(f"a publisher of weights refuses to listen on {host!r} without a token")
        self.stores = stores
        self.authorization = f"Bearer {token}".encode() if token else b""
        self._connections: set[Any] = set()
        self._lock = threading.Lock()
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise UserError(
                f"a publisher of weights cannot listen on {host}:{port}: "
                f"{error.strerror or error}; choose another port, or 0 for any"
            ) from error
        self._thread = threading.Thread(
            target=self.serve_forever, args=(0.2,), name="weights", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self.server_address[1])

    def close(self) -> None:
        """Stop listening and break every connection."""
        self.shutdown()
        self.server_close()
        self._thread.join()
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Bound the number of connections; each has a thread."""
        with self._lock:
            full = len(self._connections) >= MAX_CONNECTIONS
            if not full:
                self._connections.add(request)
        if full:
            with contextlib.suppress(OSError):
                request.sendall(_BUSY)
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Forget a connection and close it."""
        with self._lock:
            self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A receiver that goes away is its own business; anything else belongs in the log."""
        _log.warning("connection of %s failed", client_address[0], exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: WeightServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        set_patience(self.request, IDLE_S)
        super().setup()

    def handle(self) -> None:
        try:
            super().handle()
        except (ConnectionError, BlockingIOError) as error:
            _log.debug("receiver %s went away: %s", self.client_address[0], error)

    def do_GET(self) -> None:
        self._answer("GET")

    def do_DELETE(self) -> None:
        self._answer("DELETE")

    def _answer(self, method: str) -> None:
        try:
            self._authorize()
            route = _ROUTE.fullmatch(self.path)
            if route is None or (method == "DELETE") == (route["reader"] is None):
                raise Refused(404, f"no such route: {method} {self.path[:200]}")
            store = self.server.stores.get(route["policy"])
            if store is None:
                known = ", ".join(map(repr, self.server.stores)) or "none yet"
                raise Refused(404, f"this publisher serves policy {known} only")
            if method == "DELETE":
                store.leave(int(route["version"]), route["reader"])
                self._head(204, 0)
                return
            reader = self.headers.get(READER_HEADER, "")[:64]
            with store.reading(int(route["version"]), reader) as held:
                if route["what"] == "manifest":
                    self._send_manifest(held, reader)
                elif route["what"] == "data":
                    self._send(held.snapshot.data, held.snapshot.manifest.digest, held=held)
                else:
                    self._send(self._object(held, route["object"]))
        except Refused as refusal:
            body = json.dumps({"error": str(refusal)}).encode()
            self._head(refusal.status, len(body), "application/json")
            self.wfile.write(body)

    def _authorize(self) -> None:
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # the body is not read, so the connection cannot go on
            raise Refused(413, "no request here has a body")
        given = self.headers.get("Authorization", "").encode("latin-1", "replace")
        expected = self.server.authorization
        if expected and not hmac.compare_digest(given, expected):
            raise Refused(401, "missing or wrong bearer token")

    def _object(self, held: Held, name: str) -> memoryview:
        data = held.objects.get(name)
        if data is None:
            version = held.snapshot.manifest.version
            raise Refused(404, f"version {version} has no object {name!r}")
        return data

    def _send_manifest(self, held: Held, reader: str) -> None:
        port = self.headers.get(RELAY_HEADER, "")
        host = self.client_address[0]
        host = f"[{host}]" if ":" in host else host
        address = f"http://{host}:{port}" if _PORT.fullmatch(port) else ""
        relay = held.fan_out.place(reader, address) if reader else ""
        self._send(
            memoryview(held.snapshot.encoded),
            held.snapshot.manifest.digest,
            "application/msgpack",
            relay,
        )

    def _send(
        self,
        data: memoryview | Part,
        tag: str = "",
        content: str = "application/octet-stream",
        relay: str = "",
        held: Held | None = None,
    ) -> None:
        # What lies under an address never changes, so any cache may keep it for those with this token.
        extra = {"Cache-Control": CACHE, "Vary": "Authorization", "Accept-Ranges": "bytes"}
        if tag:
            extra["ETag"] = f'"{tag}"'
        if relay:  # a place in the tree is one reader's own
            extra |= {"Cache-Control": "no-store", FROM_HEADER: relay}
        elif tag and self.headers.get("If-None-Match") == extra["ETag"]:
            self._head(304, 0, extra=extra)
            return
        start, end, wanted = 0, len(data), self.headers.get("Range")
        if wanted is not None:
            start, end = self._range(wanted, len(data))
        if isinstance(data, Part):
            data.check(start, end)
        if wanted is None:
            self._head(200, end, content, extra)
        else:
            extra["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
            self._head(206, end - start, content, extra)
        arrivals = held.arrivals if held else None
        for position in range(start, end, _PIECE):
            stop = min(end, position + _PIECE)
            if arrivals is not None and held is not None:
                size = held.snapshot.manifest.block_size
                blocks = range(position // size, -(-stop // size))
                if not arrivals.wait_for(blocks, IDLE_S):
                    raise ConnectionAbortedError("a block that was to be relayed did not come")
            with data[position:stop] as piece:
                self.wfile.write(piece)

    def _range(self, wanted: str, size: int) -> tuple[int, int]:
        match = _RANGE.fullmatch(wanted)
        if match is None or int(match[1]) >= size:
            raise Refused(416, f"range {wanted[:80]!r} does not fit a file of {size} bytes")
        start, end = int(match[1]), min(size, int(match[2]) + 1) if match[2] else size
        if start >= end:
            raise Refused(416, f"range {wanted[:80]!r} is empty")
        return start, end

    def _head(
        self,
        status: int,
        length: int,
        content: str = "application/octet-stream",
        extra: Mapping[str, str] | None = None,
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content)
        if status not in (204, 304):
            self.send_header("Content-Length", str(length))
        for name, value in (extra or {}).items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug("%s " + format, self.client_address[0], *args)


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")
