"""A publisher's process that has the run's token and sends wrong replies: each line of its input names the fault from
then on, and is printed again once it is active. At first it prints the announcement of its version."""

from __future__ import annotations

import gzip
import json
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec

from astraflow_core.types import Manifest, Source
from astraflow_testing.conformance._transports.transport_rig import announcement
from astraflow_testing.weight_peers import content
from astraflow_weights.snapshot import Snapshotter
from astraflow_weights.sources import encode

GIGABYTE = 1 << 30
Body = tuple[dict[str, str], bytes]
"""Headers and what is sent under them."""


def bomb() -> bytes:
    """A gigabyte of zeros, compressed to a megabyte."""
    return gzip.compress(bytes(GIGABYTE // 16), 1) * 16


class Liar:
    """The replies with the current fault; ``url`` is its own address."""

    def __init__(self) -> None:
        self.snapshot = Snapshotter("solver").take(1, content(1), None)
        self.lie = "none"
        self.url = ""
        self._bomb = bomb()

    def manifest(self) -> Body:
        manifest = self.snapshot.manifest
        blocks = len(manifest.blocks)
        lies: dict[str, Callable[[], bytes]] = {
            "manifest of zeros": lambda: bytes(64 << 20),
            "manifest of four billion blocks": lambda: b"\x81\xa6blocks\xdd\xff\xff\xff\xff",
            "manifest of deep lists": lambda: b"\x81\xa1x" + b"\x91" * (8 << 20),
            "manifest, compressed": lambda: self._bomb,
            "many sources": lambda: self._sourced([Source(self.url, ((0, blocks),))] * 500_000),
            "many runs": lambda: self._sourced([Source(self.url, ((0, blocks),) * 500_000)]),
        }
        body = lies.get(self.lie, lambda: self.snapshot.encoded)()
        compressed = {"Content-Encoding": "gzip"} if self.lie == "manifest, compressed" else {}
        return compressed, body

    def data(self, start: int, stop: int) -> Body:
        size = stop - start
        zeros = bytes(size)
        lies: dict[str, Callable[[], Body]] = {
            "compressed": lambda: ({"Content-Encoding": "gzip"}, self._bomb),
            "compressed, of the right length": lambda: (
                {"Content-Encoding": "gzip"},
                self._bomb[:size].ljust(size, b"\0"),
            ),
            "a terabyte": lambda: ({"Content-Length": str(1 << 40)}, zeros),
            "longer than it says": lambda: (
                {"Content-Length": str(size)},
                bytes(size + (64 << 20)),
            ),
            "shorter than it says": lambda: ({"Content-Length": str(size)}, zeros[: size // 2]),
            "zeros": lambda: ({}, zeros),
        }
        honest: Body = ({}, bytes(self.snapshot.data[start:stop]))
        return lies.get(self.lie, lambda: honest)()

    def _sourced(self, sources: list[Source]) -> bytes:
        manifest: Manifest = self.snapshot.manifest
        return encode(manifest, sources)


def main() -> None:
    """Serve until standard input ends."""
    liar = Liar()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            try:
                if self.path.endswith("/manifest"):
                    self._send(200, liar.manifest())
                else:
                    first, last = self.headers["Range"].removeprefix("bytes=").split("-")
                    self._send(206, liar.data(int(first), int(last) + 1))
            except OSError:  # the receiver has seen enough
                self.close_connection = True

        def do_DELETE(self) -> None:
            self.send_response(204)
            self.end_headers()

        def _send(self, status: int, body: Body) -> None:
            headers = {"Content-Length": str(len(body[1])), **body[0]}
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body[1])
            self.close_connection = int(headers["Content-Length"]) != len(body[1])

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    liar.url = f"http://127.0.0.1:{server.server_port}"
    told = announcement(liar.snapshot.manifest, (liar.url,))
    sys.stdout.write(json.dumps(asdict(told)) + "\n")
    sys.stdout.flush()
    for line in sys.stdin:
        liar.lie = line.strip()
        sys.stdout.write(line)
        sys.stdout.flush()


if __name__ == "__main__":
    sys.path[:] = msgspec.json.decode(sys.argv[1], type=list[str])
    main()
