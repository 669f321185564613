"""Where engines join a round: ``POST /v1/collective/POLICY/VERSION`` over HTTP/1.1, from threads."""

from __future__ import annotations

import hmac
import json
import logging
import re
import socket
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from astraflow_core.errors import Refused, UserError
from astraflow_core.types import Delivery
from astraflow_plugin_collective.round import MAX_WORKERS, Round

MAX_BODY = 4096
_ROUTE = re.compile(r"/v1/collective/([a-z0-9_]+)/(\d{1,18})")
_log = logging.getLogger(__name__)


class Joining(msgspec.Struct, frozen=True):
    """The body of a request, in JSON: an engine by a name that logs can show, and its places."""

    member: str
    workers: int


class Desk(ThreadingHTTPServer):
    """Listens from construction on. ``find(version)`` is the round of a version, if there is one."""

    daemon_threads = True
    block_on_close = False

    def __init__(
        self, host: str, policy: str, token: str, find: Callable[[int], Round | None]
    ) -> None:
        if ":" in host:
            self.address_family = socket.AF_INET6
        if not token and not (host in ("localhost", "::1") or host.startswith("127.")):
            raise UserError(
                f"transport 'collective' of policy {policy!r} refuses to listen on {host!r} without a token"
            )
        self.policy, self.find = policy, find
        self.authorization = f"Bearer {token}".encode() if token else b""
        super().__init__((host, 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: Desk
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_POST(self) -> None:
        self.close_connection = True
        try:
            body, kind, status = msgspec.msgpack.encode(self._join()), "application/msgpack", 200
        except Refused as refusal:
            body = json.dumps({"error": str(refusal)}).encode()
            kind, status = "application/json", refusal.status
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def _join(self) -> Delivery:
        given = self.headers.get("Authorization", "").encode("latin-1", "replace")
        expected = self.server.authorization
        if expected and not hmac.compare_digest(given, expected):
            raise Refused(401, "missing or wrong bearer token")
        route = _ROUTE.fullmatch(self.path)
        if route is None or route[1] != self.server.policy:
            raise Refused(404, f"no such path here; this is policy {self.server.policy!r}")
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > MAX_BODY:
            raise Refused(413, f"expected a body with a length of at most {MAX_BODY} bytes")
        try:
            asked = msgspec.json.decode(self.rfile.read(int(length)), type=Joining)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise Refused(400, f"expected member and workers in JSON: {error}") from error
        if not (0 < len(asked.member) <= 400 and 0 < asked.workers <= MAX_WORKERS):
            raise Refused(400, f"expected a name and 1 to {MAX_WORKERS} workers")
        found = self.server.find(int(route[2]))
        if found is None:
            raise Refused(404, f"version {route[2]} is not broadcast; fetch it by HTTP")
        return found.join(asked.member, asked.workers)

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug("%s " + format, self.client_address[0], *args)
