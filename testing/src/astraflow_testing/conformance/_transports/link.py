"""A link between a receiver and a publisher that flips bytes and stalls when a test requests it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Protocol
from urllib.parse import urlsplit

_CHUNK = 1 << 16


class ShapedLink(Protocol):
    """Faults that a suite applies to weights in transit. ``endpoints`` lead to the publisher through the link.

    A transport that uses no network writes its own: ``flip`` changes the published bytes where they
    lie, and ``holds`` is false if a fetch cannot be made to stand still.
    """

    holds: bool

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Addresses for the announcement."""

    @property
    def flipped(self) -> int:
        """How many bytes were changed so far."""

    def flip(self, marker: bytes, times: int) -> None:
        """The next ``times`` that ``marker`` passes, one of its bytes arrives with a bit flipped."""

    def hold(self, after: int) -> threading.Event:
        """Stand still after ``after`` more bytes towards the receiver; the event says that it does."""

    def release(self) -> None:
        """Go on."""

    def close(self) -> None:
        """End every connection."""


class TcpLink:
    """A link for any transport whose endpoints are ``scheme://host:port``: a TCP proxy per endpoint."""

    holds = True

    def __init__(self, endpoints: tuple[str, ...]) -> None:
        self._lock = threading.Lock()
        self._marker, self._times, self._flipped = b"", 0, 0
        self._budget: int | None = None
        self._go, self._held = threading.Event(), threading.Event()
        self._go.set()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._endpoints = tuple(self._listen(endpoint) for endpoint in endpoints)

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Addresses of the proxies."""
        return self._endpoints

    @property
    def flipped(self) -> int:
        """How many bytes were changed so far."""
        return self._flipped

    def flip(self, marker: bytes, times: int) -> None:
        """Change the last byte of the next ``times`` passages of ``marker``."""
        with self._lock:
            self._marker, self._times = marker, times

    def hold(self, after: int) -> threading.Event:
        """Stand still after ``after`` more bytes towards receivers, on all connections together."""
        with self._lock:
            self._budget = after
        self._held.clear()
        self._go.clear()
        return self._held

    def release(self) -> None:
        """Go on."""
        with self._lock:
            self._budget = None
        self._go.set()

    def close(self) -> None:
        """End every connection and every thread."""
        self.release()
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for each in sockets:
            each.close()

    def _listen(self, endpoint: str) -> str:
        address = urlsplit(endpoint)
        if address.hostname is None or address.port is None:
            raise ValueError(
                f"endpoint {endpoint!r} is not scheme://host:port, so this suite cannot intercept it: "
                "override the fixture `link` with a Link of your own "
                "(astraflow_testing.conformance.transport)"
            )
        upstream = (address.hostname, address.port)
        listener = socket.create_server(("127.0.0.1", 0))
        self._sockets.append(listener)
        self._start(lambda: self._accept(listener, upstream))
        port: int = listener.getsockname()[1]
        return address._replace(netloc=f"127.0.0.1:{port}").geturl()

    def _start(self, run: Callable[[], None]) -> None:
        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def _accept(self, listener: socket.socket, upstream: tuple[str, int]) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:  # closed
                return
            try:
                server = socket.create_connection(upstream, timeout=10)
            except OSError:  # the publisher is gone: so is the connection
                client.close()
                continue
            server.settimeout(None)
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._sockets += [client, server]
            self._start(partial(self._pump, client, server, False))
            self._start(partial(self._pump, server, client, True))

    def _pump(self, source: socket.socket, target: socket.socket, to_receiver: bool) -> None:
        tail = b""
        with contextlib.suppress(OSError):  # either end left, which ends the other's connection
            while data := source.recv(_CHUNK):
                if to_receiver:
                    self._wait_for(len(data))
                    data, tail = self._alter(tail, data)
                target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _wait_for(self, count: int) -> None:
        with self._lock:
            if self._budget is None:
                return
            self._budget -= count
            stand = self._budget < 0
        if stand:
            self._held.set()
            self._go.wait(60)

    def _alter(self, tail: bytes, data: bytes) -> tuple[bytes, bytes]:
        """The data to send on, and the end of it in which a marker may have begun."""
        with self._lock:
            marker = self._marker
            if not self._times:
                return data, (tail + data)[1 - len(marker) :] if len(marker) > 1 else b""
            whole = bytearray(tail + data)
            position = whole.find(marker)
            while position >= 0 and self._times:
                whole[position + len(marker) - 1] ^= 1
                self._times -= 1
                self._flipped += 1
                position = whole.find(marker, position + len(marker))
            return bytes(whole[len(tail) :]), (tail + data)[1 - len(marker) :]


_HANDSHAKE = 1 << 12
"""What passes in pieces above this is blocks."""


class EncryptedLink(TcpLink):
    """A :class:`TcpLink` for a transport that encrypts, where a marker is never seen: any byte of a block is changed
    instead."""

    def _alter(self, tail: bytes, data: bytes) -> tuple[bytes, bytes]:
        with self._lock:
            if self._times and len(data) > _HANDSHAKE:
                self._times -= 1
                self._flipped += 1
                data = data[:100] + bytes([data[100] ^ 1]) + data[101:]
        return data, b""
