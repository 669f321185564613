"""Answers requests for manifests and blocks, in a separate thread; every request gets one reply."""

from __future__ import annotations

import logging
import os
import threading
from contextlib import ExitStack

import zmq

from astraflow_core.errors import Refused, UserError
from astraflow_plugin_zmq.keys import secure
from astraflow_plugin_zmq.messages import (
    BLOCK,
    LEAVE,
    MANIFEST,
    MAX_CREDIT,
    MAX_REQUEST,
    PIECE,
    REFUSED,
    number,
)
from astraflow_weights.publish.store import VersionStore
from astraflow_wire.http.connection_limits import HEAD_S
from astraflow_wire.http.listening import cannot_listen

_HEARTBEAT_MS = 5000
_ENCRYPTING = min(4, os.cpu_count() or 1)
"""Threads that encrypt; each connection stays with one of them."""
_LOOPBACK = ("localhost", "::1")
_log = logging.getLogger(__name__)


class BlockServer:
    """Listens from construction on, until :meth:`close`.

    A block is copied when its turn has come, and at most :data:`MAX_CREDIT` are queued for one receiver:
    a receiver that asks for more than it takes is not answered, and holds nothing beyond that.
    """

    def __init__(self, store: VersionStore, policy: str, token: str, host: str, port: int) -> None:
        if not token and not (host in _LOOPBACK or host.startswith("127.")):
            raise UserError(
                f"transport 'zmq' of policy {policy!r} refuses to listen on {host!r} without a token"
            )
        self._store = store
        self._context = zmq.Context(io_threads=_ENCRYPTING)
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self._socket.sndhwm = MAX_CREDIT
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_REQUEST)
        self._socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        self._socket.setsockopt(zmq.HANDSHAKE_IVL, int(HEAD_S * 1000))
        self._socket.ipv6 = ":" in host
        secure(self._socket, token, server=True)
        address = f"[{host}]" if ":" in host else host
        try:
            self._socket.bind(f"tcp://{address}:{port or '*'}")
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            cause = OSError(error.errno, error.strerror)
            raise UserError(
                f"transport 'zmq' of policy {policy!r} {cannot_listen(host, port, cause)}"
            ) from error
        last = self._socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(last, bytes)
        self.port = int(last.rstrip(b"\0").rpartition(b":")[2])
        self._wake, self._waken = os.pipe()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"weights-{policy}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening; closing twice is allowed."""
        if self._closed:
            return
        self._closed = True
        os.write(self._waken, b"x")
        self._thread.join()
        self._context.destroy(linger=0)
        os.close(self._wake)
        os.close(self._waken)

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._wake, zmq.POLLIN)
        while not self._closed:
            if self._socket in dict(poller.poll()):
                peer, *request = self._socket.recv_multipart()
                with ExitStack() as reading:
                    answer = self._answer(request, reading)
                    if answer:
                        self._send(peer, answer)

    def _send(self, peer: bytes, answer: list[bytes | memoryview]) -> None:
        try:
            self._socket.send_multipart([peer, *answer], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            # Gone, or it asked for more than its credit: it will ask again.
            _log.debug("no answer to a receiver: %s", error.strerror)

    def _answer(self, request: list[bytes], reading: ExitStack) -> list[bytes | memoryview]:
        """The answer, whose bytes are there until ``reading`` ends: a dropped version's buffer is used again."""
        try:
            what, version, reader, *rest = request
            name = reader.decode("ascii")[:64]
            if what == LEAVE:
                self._store.leave(number(version), name)
                return []
            held = reading.enter_context(self._store.reading(number(version), name))
            if what == MANIFEST:
                return [MANIFEST, held.snapshot.encoded]
            if what == BLOCK:
                manifest, index = held.snapshot.manifest, number(rest[0])
                if index < len(manifest.blocks):
                    start = index * manifest.block_size
                    end = min(start + manifest.block_size, manifest.size)
                    data = held.snapshot.data
                    pieces = [data[at : min(at + PIECE, end)] for at in range(start, end, PIECE)]
                    for piece in pieces:
                        reading.enter_context(piece)
                    return [BLOCK, rest[0], *pieces]
            return [REFUSED, b"no such request"]
        except Refused as refusal:
            return [REFUSED, str(refusal).encode()]
        except (ValueError, IndexError):
            return [REFUSED, b"malformed request"]
