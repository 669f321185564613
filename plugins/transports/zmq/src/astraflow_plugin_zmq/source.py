"""One publisher as a source of blocks."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from urllib.parse import urlsplit
from uuid import uuid4

import zmq
from zmq.utils.monitor import recv_monitor_message

from astraflow_core.types import Announcement, Manifest
from astraflow_core.weights.announced import MAX_MANIFEST
from astraflow_core.weights.failures import PublisherFailed
from astraflow_core.weights.landing import Landing
from astraflow_plugin_zmq.keys import secure
from astraflow_plugin_zmq.messages import BLOCK, LEAVE, MANIFEST, REFUSED, number

FAILURES = 5
"""Failed connections in a row, with no good block between, after which the publisher is given up."""
REFUSALS = 3
"""Connections that the publisher ended before any was agreed on: keys that differ, or no publisher."""
STALL_S = 20.0
"""A publisher that sends nothing for so long counts as failed."""
_POLL_MS = 100
_PAUSE_S = 0.05
_EVENTS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
)


class _Lost(Exception):
    """The connection failed in a way that may pass."""


class ZmqSource:
    """Keeps ``credit`` requests under way; each answer makes room for the next."""

    def __init__(self, announcement: Announcement, endpoint: str, token: str, credit: int) -> None:
        address = urlsplit(endpoint)
        if address.scheme != "tcp" or not address.hostname or not address.port:
            raise PublisherFailed("expected an address such as tcp://host:port")
        self._endpoint, self._token, self._credit = endpoint, token, credit
        self._ipv6 = ":" in address.hostname
        self._version = str(announcement.version).encode()
        self._reader = uuid4().hex.encode()
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._agreed = False
        self._failures = self._refusals = 0

    def manifest(self, landing: Landing) -> bytes:
        """The manifest as it came."""
        while True:
            try:
                self._ask(MANIFEST)
                kind, *rest = self._answer(landing)
                if kind != MANIFEST or len(rest) != 1:
                    raise PublisherFailed("it sent a malformed answer")
                return rest[0]
            except _Lost as lost:
                self._again(lost, landing)

    def deliver(self, manifest: Manifest, landing: Landing) -> None:
        """Ask for what is missing until all has landed."""
        while missing := deque(landing.missing()):
            asked: set[int] = set()
            try:
                while missing or asked:
                    while missing and len(asked) < self._credit:
                        asked.add(missing[0])
                        self._ask(BLOCK, str(missing.popleft()).encode())
                    self._land(self._answer(landing), asked, missing, landing)
            except _Lost as lost:
                self._again(lost, landing)

    def close(self) -> None:
        """Say that the reader is done, if there is a connection; the lease would end by itself."""
        if self._socket is not None and self._agreed:
            with contextlib.suppress(zmq.ZMQError):
                self._socket.send_multipart([LEAVE, self._version, self._reader], zmq.NOBLOCK)
        self._disconnect(linger=200)
        self._context.destroy(linger=200)

    def _land(
        self, answer: list[bytes], asked: set[int], missing: deque[int], landing: Landing
    ) -> None:
        try:
            kind, index, data = answer
            block = number(index)
        except ValueError as error:
            raise PublisherFailed("it sent a malformed answer") from error
        if kind != BLOCK or block not in asked:
            return  # asked for before a connection was lost
        asked.discard(block)
        if landing.land(block, data):
            self._failures = 0
        else:
            missing.append(block)

    def _ask(self, what: bytes, *more: bytes) -> None:
        if self._socket is None:
            self._connect()
        assert self._socket is not None
        try:
            self._socket.send_multipart([what, self._version, self._reader, *more], zmq.NOBLOCK)
        except zmq.Again as error:
            raise _Lost("it takes no requests") from error

    def _answer(self, landing: Landing) -> list[bytes]:
        """The next answer; watches the connection and the deadline meanwhile."""
        assert self._socket is not None and self._monitor is not None
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        until = time.monotonic() + STALL_S
        while time.monotonic() < until:
            ready = dict(poller.poll(min(_POLL_MS, int(1000 * landing.left()) + 1)))
            if self._socket in ready:
                answer = self._socket.recv_multipart()
                if answer[0] == REFUSED:
                    raise PublisherFailed(answer[-1].decode("utf-8", "replace")[:500])
                return answer
            if self._monitor in ready:
                self._watch()
        raise _Lost(f"it sent nothing for {STALL_S:.0f} s")

    def _watch(self) -> None:
        assert self._monitor is not None
        event = recv_monitor_message(self._monitor)["event"]
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._agreed, self._refusals = True, 0
        elif event == zmq.EVENT_CLOSED:
            raise _Lost("nobody listens there")
        elif self._agreed and event == zmq.EVENT_DISCONNECTED:
            raise _Lost("the connection ended")
        elif event != zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
            self._refusals += 1
            if self._refusals >= REFUSALS:
                raise PublisherFailed(
                    "it refused the keys: another run's token here or there, or no publisher of weights"
                )
            raise _Lost("the handshake failed")

    def _again(self, lost: _Lost, landing: Landing) -> None:
        self._disconnect(linger=0)
        self._failures += 1
        if self._failures > FAILURES:
            raise PublisherFailed(
                f"{self._failures} connections failed in a row, the last: {lost}"
            ) from lost
        time.sleep(min(_PAUSE_S * 2**self._failures, landing.left()))

    def _connect(self) -> None:
        socket = self._context.socket(zmq.DEALER)
        socket.rcvhwm = socket.sndhwm = 2 * self._credit + 2
        socket.ipv6 = self._ipv6
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_MANIFEST)
        secure(socket, self._token, server=False)
        self._monitor = socket.get_monitor_socket(_EVENTS)
        self._socket, self._agreed = socket, False
        try:
            socket.connect(self._endpoint)
        except zmq.ZMQError as error:
            raise PublisherFailed(f"cannot connect: {error.strerror}") from error

    def _disconnect(self, linger: int) -> None:
        if self._socket is not None:
            self._socket.disable_monitor()
            self._socket.close(linger=linger)
        self._socket = self._monitor = None
