"""Replies that end early, as a proxy or a dying service leaves them: no client takes one for an answer."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from astraflow_core.errors import DeadlineExceeded, Refused
from astraflow_core.types import Announcement
from astraflow_weights.fetch import client as weights_client
from astraflow_weights.fetch.client import VersionClient
from astraflow_wire import messages
from astraflow_wire.http import client
from astraflow_wire.http.client import AsyncClient, SyncClient
from astraflow_wire.http.raas_client import RaasClient

pytestmark = pytest.mark.timeout(60)

REGISTERED = messages.RaasRegistered(
    run="r", renew_s=0.5, notices=messages.Notices(), incarnation=1
)
BODY = messages.encode(REGISTERED)
HEAD = b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-type: application/msgpack\r\n"
SIZED = HEAD + b"content-length: %d\r\nserver: test\r\n\r\n" % len(BODY) + BODY
CHUNKED = (
    HEAD
    + b"transfer-encoding: chunked\r\n\r\n"
    + b"5\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (BODY[:5], len(BODY) - 5, BODY[5:])
)
REASON = b'{"error": "no such thing"}'
REFUSED = (
    b"HTTP/1.1 404 Not Found\r\ncontent-length: %d\r\nserver: test\r\n\r\n" % len(REASON) + REASON
)
HELLO = messages.RegisterRaas(raas="r", pid=1, host="h", policies=["a"], capacity=1)
Call = Callable[[str], messages.RaasRegistered]


class Cutting:
    """A service that answers every call twice: first with ``reply[:cut]`` and the end of the connection, a reset if
    ``abrupt``, then with the whole."""

    def __init__(self, reply: bytes) -> None:
        self.reply, self.cut, self.abrupt = reply, 0, False
        self.recovers = True
        self.calls = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return
            with accepted:
                accepted.settimeout(10)
                while self._request(accepted):
                    self.calls += 1
                    if self.recovers and self.calls % 2 == 0:
                        accepted.sendall(self.reply)
                        continue
                    accepted.sendall(self.reply[: self.cut])
                    if self.abrupt:
                        linger = struct.pack("ii", 1, 0)
                        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    break

    @staticmethod
    def _request(accepted: socket.socket) -> bool:
        """Whether one came, whole."""
        got = b""
        while b"\r\n\r\n" not in got:
            if not (piece := accepted.recv(65536)):
                return False
            got += piece
        head, _, body = got.partition(b"\r\n\r\n")
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-len")]
        expected = int(lengths[0].partition(b":")[2]) if lengths else 0
        while len(body) < expected:
            body += accepted.recv(65536)
        return True

    def close(self) -> None:
        # To close a socket does not wake who accepts on it.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)


@contextmanager
def cutting(reply: bytes) -> Iterator[Cutting]:
    service = Cutting(reply)
    try:
        yield service
    finally:
        service.close()


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_FIRST_PAUSE_S", 0.0)


def each_cut(service: Cutting, call: Callable[[], object], wanted: object) -> None:
    """Cut at every byte: the call is made again, and has the answer."""
    for cut in range(len(service.reply)):
        for abrupt in (False, True):
            service.cut, service.abrupt, service.calls = cut, abrupt, 0
            try:
                found = call()
            except Refused as refused:
                found = (refused.status, str(refused))
            assert (found, service.calls) == (wanted, 2), service.reply[:cut]


@pytest.mark.parametrize(
    ("reply", "wanted"),
    [(SIZED, REGISTERED), (CHUNKED, REGISTERED), (REFUSED, (404, "no such thing"))],
)
def test_the_blocking_client_calls_again(reply: bytes, wanted: object) -> None:
    with cutting(reply) as service:
        sync = SyncClient(service.url, "")
        path = "/v1/raas/register"
        each_cut(
            service, lambda: sync.post(path, HELLO, messages.RaasRegistered, deadline_s=30), wanted
        )
        sync.close()


@pytest.mark.parametrize(
    ("reply", "wanted"),
    [(SIZED, REGISTERED), (CHUNKED, REGISTERED), (REFUSED, (404, "no such thing"))],
)
def test_the_asyncio_client_calls_again(reply: bytes, wanted: object) -> None:
    with cutting(reply) as service, asyncio.Runner() as loop:
        http = AsyncClient(service.url, "")
        path = "/v1/raas/register"

        def call() -> object:
            return loop.run(http.post(path, HELLO, messages.RaasRegistered, deadline_s=30))

        each_cut(service, call, wanted)
        loop.run(http.aclose())


def test_a_raas_registers_all_the_same() -> None:
    with cutting(SIZED) as service, asyncio.Runner() as loop:
        http = AsyncClient(service.url, "")

        def call() -> float:
            raas = RaasClient(http, "r", ["a"], 1, lambda notices: None, deadline_s=30)
            loop.run(raas.register())
            return raas.renew_s

        each_cut(service, call, 0.5)
        loop.run(http.aclose())


def test_the_client_of_weights_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        weights_client.VersionClient, "pause_after", lambda self, error, before: before
    )
    body = b'{"side": "object"}'
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nServer: test\r\n\r\n" % len(body) + body
    announced = Announcement("a", 1, "http", (), "0" * 32, 10)
    with cutting(reply) as service:

        def call() -> bytes:
            client = VersionClient(announced, service.url, "", time.monotonic() + 30)
            return client.read("side", 1000)

        each_cut(service, call, body)


@pytest.mark.parametrize("which", [SyncClient, AsyncClient])
def test_a_reply_that_does_not_say_where_it_ends_is_no_answer(which: type) -> None:
    with cutting(HEAD + b"\r\n" + BODY) as service:
        service.cut, service.recovers = len(service.reply), False
        talk = which(service.url, "")
        path = "/v1/raas/register"
        with pytest.raises(DeadlineExceeded):
            if which is AsyncClient:

                async def call() -> None:
                    try:
                        await talk.post(path, HELLO, messages.RaasRegistered, deadline_s=0.5)
                    finally:
                        await talk.aclose()

                asyncio.run(call())
            else:
                talk.post(path, HELLO, messages.RaasRegistered, deadline_s=0.5)
        assert service.calls > 1
