"""Where engines ask for a direct delivery, over HTTP/1.1 from threads.

``POST /v1/direct/POLICY/VERSION`` asks, ``DELETE /v1/direct/POLICY/VERSION/TICKET`` says that it is no longer needed.
"""

from __future__ import annotations

import hmac
import json
import logging
import re
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from astraflow_core.errors import Refused, UserError
from astraflow_core.types import Delivery

MAX_BODY = 4096
MAX_WORKERS = 4096
OBJECT = "direct"
"""Side object of a version that says, in JSON, where to ask."""
_ROUTE = re.compile(r"/v1/direct/([a-z0-9_]+)/(\d{1,18})(?:/(\w{1,64}))?")
CLOSE_S = 5.0
_log = logging.getLogger(__name__)


class Joining(msgspec.Struct, frozen=True):
    """The body of a request, in JSON: an engine by a name that logs can show, and its places."""

    member: str
    workers: int


class Desk(ThreadingHTTPServer):
    """Listens from construction to :meth:`close`, in threads of its own. ``meet(version, joining)`` returns the delivery or
    raises :class:`Refused`; it may wait. ``done(version, ticket)``: a delivery is no longer needed."""

    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        host: str,
        policy: str,
        token: str,
        meet: Callable[[int, Joining], Delivery],
        done: Callable[[int, str], None] = lambda version, ticket: None,
    ) -> None:
        if ":" in host:
            self.address_family = socket.AF_INET6
        if not token and not (host in ("localhost", "::1") or host.startswith("127.")):
            raise UserError(
                f"the transport of policy {policy!r} refuses to listen on {host!r} without a token"
            )
        self.policy, self.meet, self.done = policy, meet, done
        self.authorization = f"Bearer {token}".encode() if token else b""
        super().__init__((host, 0), _Handler)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    def where(self, address: str) -> bytes:
        """The side object, for those who reach this host at ``address``."""
        name = f"[{address}]" if ":" in address else address
        url = f"http://{name}:{self.server_address[1]}/v1/direct/{self.policy}"
        return json.dumps({"ask": url}).encode()

    def close(self) -> None:
        """Stop; closing twice is allowed."""
        if self._thread.is_alive():
            self.shutdown()
            self._thread.join(CLOSE_S)
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Desk
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_POST(self) -> None:
        self.close_connection = True
        try:
            self._answer(200, "application/msgpack", msgspec.msgpack.encode(self._join()))
        except Refused as refusal:
            self._refuse(refusal)

    def do_DELETE(self) -> None:
        self.close_connection = True
        try:
            version, ticket = self._route()
            self.server.done(version, ticket or "")
            self._answer(200, "application/json", b"{}")
        except Refused as refusal:
            self._refuse(refusal)

    def _refuse(self, refusal: Refused) -> None:
        body = json.dumps({"error": str(refusal)}).encode()
        self._answer(refusal.status, "application/json", body)

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def _route(self) -> tuple[int, str | None]:
        given = self.headers.get("Authorization", "").encode("latin-1", "replace")
        expected = self.server.authorization
        if expected and not hmac.compare_digest(given, expected):
            raise Refused(401, "missing or wrong bearer token")
        route = _ROUTE.fullmatch(self.path)
        if route is None or route[1] != self.server.policy:
            raise Refused(404, f"no such path here; this is policy {self.server.policy!r}")
        return int(route[2]), route[3]

    def _join(self) -> Delivery:
        version, ticket = self._route()
        if ticket is not None:
            raise Refused(404, "ask without a ticket")
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > MAX_BODY:
            raise Refused(413, f"expected a body with a length of at most {MAX_BODY} bytes")
        try:
            asked = msgspec.json.decode(self.rfile.read(int(length)), type=Joining)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise Refused(400, f"expected member and workers in JSON: {error}") from error
        if not (0 < len(asked.member) <= 400 and 0 <= asked.workers <= MAX_WORKERS):
            raise Refused(400, f"expected a name and 0 to {MAX_WORKERS} workers")
        return self.server.meet(version, asked)

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug("%s " + format, self.client_address[0], *args)
