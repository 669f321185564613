"""Where engines ask for a direct delivery, over HTTP/1.1 from threads.

``POST /v1/direct/POLICY/VERSION`` asks, ``DELETE /v1/direct/POLICY/VERSION/TICKET`` says that it is no longer needed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import msgspec

from astraflow_core.errors import Refused, WireError
from astraflow_core.types import Delivery
from astraflow_weights.publish.threaded_server import Handler, ThreadedServer
from astraflow_wire.decoding import from_json
from astraflow_wire.http.connection_limits import Limits

MAX_BODY = 4096
MAX_WORKERS = 4096
OBJECT = "direct"
"""Side object of a version that says, in JSON, where to ask."""
_LENGTH = re.compile(r"[0-9]{1,9}")
_ROUTE = re.compile(r"/v1/direct/([a-z0-9_]+)/(\d{1,18})(?:/(\w{1,64}))?")


class Joining(msgspec.Struct, frozen=True):
    """The body of a request, in JSON: an engine by a name that logs can show, and its places."""

    member: str
    workers: int


class DeliveryServer(ThreadedServer):
    """Listens from construction to :meth:`close`, in its own threads. ``meet(version, joining)`` returns the delivery or
    raises :class:`Refused`; it may wait. ``done(version, ticket)``: a delivery is no longer needed."""

    def __init__(
        self,
        host: str,
        policy: str,
        token: str,
        meet: Callable[[int, Joining], Delivery],
        done: Callable[[int, str], None] = lambda version, ticket: None,
        limits: Limits | None = None,
    ) -> None:
        self.policy, self.meet, self.done = policy, meet, done
        super().__init__(f"the transport of policy {policy!r}", token, host, 0, _Handler, limits)

    def where(self, address: str) -> bytes:
        """The side object, for those who reach this host at ``address``."""
        url = f"{self.url(address)}/v1/direct/{self.policy}"
        return json.dumps({"ask": url}).encode()


class _Handler(Handler):
    server: DeliveryServer
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
        self.authorize()
        route = _ROUTE.fullmatch(self.path)
        if route is None or route[1] != self.server.policy:
            raise Refused(404, f"no such path here; this is policy {self.server.policy!r}")
        return int(route[2]), route[3]

    def _join(self) -> Delivery:
        version, ticket = self._route()
        if ticket is not None:
            raise Refused(404, "request without a ticket")
        length = self.headers.get("Content-Length", "")
        if not _LENGTH.fullmatch(length) or int(length) > MAX_BODY:
            raise Refused(413, f"expected a body with a length of at most {MAX_BODY} bytes")
        try:
            body = self.rfile.read(int(length))
            asked = from_json(body, Joining, "expected member and workers in JSON")
        except WireError as error:
            raise Refused(400, str(error)) from error
        if not (0 < len(asked.member) <= 400 and 0 <= asked.workers <= MAX_WORKERS):
            raise Refused(400, f"expected a name and 0 to {MAX_WORKERS} workers")
        return self.server.meet(version, asked)
