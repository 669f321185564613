"""Serves versions over HTTP/1.1 from threads and plain sockets (2.5 times an event loop's throughput).

``GET /v1/weights/POLICY/VERSION/manifest`` (msgpack), ``…/data`` (the file) and ``…/objects/NAME`` (bytes
that belong to the version), with or without ``Range``;
``DELETE …/readers/READER`` ends the lease that a request with the header ``AstraFlow-Reader`` took.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from astraflow_core.errors import Refused
from astraflow_weights.block_range import BlockRange
from astraflow_weights.connection import set_stall_timeout
from astraflow_weights.publish.store import StoredVersion, VersionStore
from astraflow_weights.publish.threaded_server import Handler, ThreadedServer
from astraflow_wire.http.connection_limits import Limits

READER_HEADER = "AstraFlow-Reader"
RELAY_HEADER = "AstraFlow-Relay"
"""Of a request for a manifest: the port on which the reader will serve others."""
FROM_HEADER = "AstraFlow-From"
"""Of the answer: the address of the relay that the reader should fetch from."""
CACHE = "public, max-age=31536000, immutable"
IDLE_S = 60.0
"""A connection that moves no byte for so long is closed."""
_PIECE = 1 << 20
_ROUTE = re.compile(
    r"/v1/weights/(?P<policy>[a-z0-9_]+)/(?P<version>\d{1,18})"
    r"/(?:(?P<what>manifest|data|objects/(?P<object>[a-z0-9][a-z0-9._-]{0,95}))|readers/(?P<reader>[\w-]{1,64}))"
)
_PORT = re.compile(r"[1-9]\d{0,4}")
_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{0,18})")


class WeightServer(ThreadedServer):
    """Listens from construction on, in its own threads, until :meth:`close`."""

    def __init__(
        self,
        stores: Mapping[str, VersionStore],
        token: str,
        host: str,
        port: int,
        limits: Limits | None = None,
    ) -> None:
        self.stores = stores
        super().__init__("a publisher of weights", token, host, port, _Handler, limits)


class _Handler(Handler):
    server: WeightServer

    def setup(self) -> None:
        set_stall_timeout(self.request, IDLE_S)
        super().setup()

    def do_GET(self) -> None:
        self._answer("GET")

    def do_DELETE(self) -> None:
        self._answer("DELETE")

    def _answer(self, method: str) -> None:
        try:
            self._check()
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

    def _check(self) -> None:
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # the body is not read, so the connection cannot continue
            raise Refused(413, "requests here have no body")
        self.authorize()

    def _object(self, held: StoredVersion, name: str) -> memoryview:
        data = held.objects.get(name)
        if data is None:
            version = held.snapshot.manifest.version
            raise Refused(404, f"version {version} has no object {name!r}")
        return data

    def _send_manifest(self, held: StoredVersion, reader: str) -> None:
        port = self.headers.get(RELAY_HEADER, "")
        known = _PORT.fullmatch(port)
        address = self.server.url(self.client_address[0], int(port)) if known else ""
        relay = held.fan_out.place(reader, address) if reader else ""
        self._send(
            memoryview(held.snapshot.encoded),
            held.snapshot.manifest.digest,
            "application/msgpack",
            relay,
        )

    def _send(
        self,
        data: memoryview | BlockRange,
        tag: str = "",
        content: str = "application/octet-stream",
        relay: str = "",
        held: StoredVersion | None = None,
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
        if isinstance(data, BlockRange):
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
                    raise ConnectionAbortedError("a block to relay did not arrive")
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
