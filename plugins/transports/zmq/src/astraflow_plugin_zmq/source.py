"""One publisher as a source of blocks."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from uuid import uuid4

import zmq

from astraflow_core.types import Announcement, Manifest
from astraflow_plugin_zmq.line import HandshakeRefused, Line, Lost
from astraflow_plugin_zmq.messages import BLOCK, LEAVE, MANIFEST, REFUSED, number
from astraflow_weights.addresses import address_of
from astraflow_weights.failures import PublisherFailed
from astraflow_weights.fetch.landing import BlockFile

FAILURES = 5
"""Failed connections in a row, with no good block between, after which the publisher is given up."""
REFUSALS = 3
"""Handshakes that failed, with none that succeeded between, after which it is given up."""
STALL_S = 20.0
"""A publisher that sends nothing for so long counts as failed."""
_POLL_MS = 100
_PAUSE_S = 0.05


class ZmqSource:
    """Keeps ``credit`` requests under way, spread over ``streams`` connections, since each is decrypted by one
    thread; every answer makes room for the next."""

    def __init__(
        self, announcement: Announcement, endpoint: str, token: str, credit: int, streams: int
    ) -> None:
        if address_of(endpoint, "tcp").port is None:
            raise PublisherFailed("expected an address such as tcp://host:port")
        self._endpoint, self._token = endpoint, token
        self._credit, self._streams = credit, min(streams, credit)
        self._version = str(announcement.version).encode()
        self._reader = uuid4().hex.encode()
        self._context = zmq.Context(io_threads=self._streams)
        self._lines: list[Line] = []
        self._poller = zmq.Poller()
        self._failures = self._refusals = 0
        self._block = bytearray()

    def manifest(self, landing: BlockFile) -> bytes:
        """The manifest as it came."""
        while True:
            try:
                self._widen(1)
                self._send_request(self._lines[0], MANIFEST)
                _, answer = next(self._answers(landing))
                if len(answer) != 2 or answer[0].bytes != MANIFEST:
                    raise PublisherFailed("it sent a malformed reply")
                return answer[1].bytes
            except Lost as lost:
                self._again(lost, landing)

    def deliver(self, manifest: Manifest, landing: BlockFile) -> None:
        """Ask for what is missing until all has landed."""
        self._block = bytearray(min(manifest.block_size, manifest.size))
        while missing := deque(landing.missing()):
            try:
                self._widen(min(self._streams, len(missing)))
                answers = self._answers(landing)
                while missing or any(line.asked for line in self._lines):
                    self._fill(missing)
                    self._land(*next(answers), missing, landing)
            except Lost as lost:
                self._again(lost, landing)

    def close(self) -> None:
        """Report that the reader is done, if there is a connection; otherwise the lease would expire."""
        for line in self._lines[:1]:
            if line.agreed:
                with contextlib.suppress(Lost):
                    self._send_request(line, LEAVE)
        self._disconnect(linger=200)
        self._context.destroy(linger=200)

    def _widen(self, lines: int) -> None:
        while len(self._lines) < lines:
            line = Line(self._context, self._endpoint, self._token, self._credit)
            self._lines.append(line)
            self._poller.register(line.socket, zmq.POLLIN)
            self._poller.register(line.monitor, zmq.POLLIN)

    def _fill(self, missing: deque[int]) -> None:
        """Use the credit, first of the connections that have the fewest requests under way."""
        while missing and sum(len(line.asked) for line in self._lines) < self._credit:
            line = min(self._lines, key=lambda each: len(each.asked))
            line.asked.add(missing[0])
            self._send_request(line, BLOCK, str(missing.popleft()).encode())

    def _land(
        self, line: Line, answer: list[zmq.Frame], missing: deque[int], landing: BlockFile
    ) -> None:
        try:
            kind, index, *pieces = answer
            block = number(index.bytes)
        except ValueError as error:
            raise PublisherFailed("it sent a malformed reply") from error
        if kind.bytes != BLOCK or block not in line.asked:
            return
        line.asked.discard(block)
        if landing.land(block, self._joined(pieces)):
            self._failures = 0
        else:
            missing.append(block)

    def _joined(self, pieces: list[zmq.Frame]) -> memoryview:
        """The block, in a buffer that stays in the cache; empty if it is longer than a block is."""
        whole, end = memoryview(self._block), 0
        if sum(len(piece) for piece in pieces) > len(whole):
            return whole[:0]
        for piece in pieces:
            whole[end : end + len(piece)] = piece.buffer
            end += len(piece)
        return whole[:end]

    def _send_request(self, line: Line, what: bytes, *more: bytes) -> None:
        line.send(what, self._version, self._reader, *more)

    def _answers(self, landing: BlockFile) -> Iterator[tuple[Line, list[zmq.Frame]]]:
        """The answers in turn; watches the connections and the deadline meanwhile."""
        while True:
            until = time.monotonic() + STALL_S
            ready: dict[object, int] = {}
            while not ready:
                if time.monotonic() > until:
                    raise Lost(f"it sent nothing for {STALL_S:.0f} s")
                ready = dict(self._poller.poll(min(_POLL_MS, int(1000 * landing.time_left()) + 1)))
                for line in self._lines:
                    if line.socket not in ready and line.monitor in ready:
                        line.watch()
                        del ready[line.monitor]
                        self._refusals = 0 if line.agreed else self._refusals
            for line in self._lines:
                if line.socket in ready:
                    answer = line.socket.recv_multipart(copy=False)
                    if answer[0].bytes == REFUSED:
                        reason = answer[-1].bytes.decode("utf-8", "replace")
                        raise PublisherFailed(reason[:500])
                    yield line, answer

    def _again(self, lost: Lost, landing: BlockFile) -> None:
        self._disconnect(linger=0)
        if isinstance(lost, HandshakeRefused):
            self._refusals += 1
            if self._refusals >= REFUSALS:
                raise PublisherFailed(
                    "it refused the keys: the token belongs to another run, or the server is not a publisher of weights"
                ) from lost
        self._failures += 1
        if self._failures > FAILURES:
            raise PublisherFailed(
                f"{self._failures} connections failed in a row, the last: {lost}"
            ) from lost
        time.sleep(min(_PAUSE_S * 2**self._failures, landing.time_left()))

    def _disconnect(self, linger: int) -> None:
        for line in self._lines:
            self._poller.unregister(line.socket)
            self._poller.unregister(line.monitor)
            line.close(linger)
        self._lines.clear()
