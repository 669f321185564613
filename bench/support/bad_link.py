"""A proxy before a publisher that flips one bit and breaks every connection once.

    python -m bench.support.bad_link FILE HOST:PORT NAMESPACE

``POST /arm?flip=BYTE&cut=BYTE`` on its own port sets both, counted in bytes of bodies and heads that it has
passed on since; the answer to ``POST /arm`` says how many bytes were passed on before.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from pathlib import Path

from bench.support.processes import announce
from bench.support.slow_link import ADDRESSES, enter

PIECE = 1 << 18


class BadLink:
    """Passes connections on to ``upstream``."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self._upstream = upstream
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._passed = 0
        self._flip = self._cut = -1

    def serve(self, listener: socket.socket) -> None:
        """Accept for ever."""
        while True:
            client, _ = listener.accept()
            upstream = socket.create_connection(self._upstream)
            with self._lock:
                self._pairs.append((client, upstream))
            for pump in (self._requests, self._answers):
                threading.Thread(target=pump, args=(client, upstream), daemon=True).start()

    def _requests(self, client: socket.socket, upstream: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := client.recv(PIECE):
                if piece.startswith(b"POST /arm"):
                    client.sendall(self._arm(piece))
                else:
                    upstream.sendall(piece)
        _end(client, upstream)

    def _answers(self, client: socket.socket, upstream: socket.socket) -> None:
        buffer = bytearray(PIECE)
        with contextlib.suppress(OSError), memoryview(buffer) as view:
            while count := upstream.recv_into(view):
                with self._lock:
                    start, self._passed = self._passed, self._passed + count
                    if start <= self._flip < start + count:
                        view[self._flip - start] ^= 1
                        self._flip = -1
                    broken = self._pairs if start <= self._cut < start + count else []
                    if broken:
                        self._pairs, self._cut = [], -1
                for pair in broken:
                    _end(*pair)
                client.sendall(view[:count])
        _end(client, upstream)

    def _arm(self, request: bytes) -> bytes:
        keys = dict(
            pair.split("=")
            for pair in request.split()[1].decode().partition("?")[2].split("&")
            if pair
        )
        with self._lock:
            passed, self._passed = self._passed, 0
            self._flip, self._cut = int(keys.get("flip", -1)), int(keys.get("cut", -1))
        body = str(passed).encode()
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def _end(*pair: socket.socket) -> None:
    for each in pair:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def main() -> int:
    """Entry point."""
    file, upstream, namespace = sys.argv[1:]
    host, _, port = upstream.rpartition(":")
    enter(namespace)
    listener = socket.create_server((ADDRESSES[0], 0), backlog=128)
    announce(Path(file), f"http://{ADDRESSES[0]}:{listener.getsockname()[1]}")
    BadLink((host, int(port))).serve(listener)
    return 0


if __name__ == "__main__":
    sys.exit(main())
