from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import pytest
from fastapi import Request

from astraflow_wire.http import connection_limits, listener
from astraflow_wire.http.connection_limits import (
    HEAD_S,
    MAX_HEAD,
    MAX_HEADERS,
    RESERVED_DESCRIPTORS,
    ConnectionLimits,
    Limits,
    Occasional,
    descriptor_limit,
    raise_descriptor_limit,
)
from astraflow_wire.http.server import Server, create_app

pytestmark = pytest.mark.timeout(20)
TOKEN = "secret"
WAIT_S = 10.0


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def of(total: int, per_address: int, unauthenticated: int) -> tuple[ConnectionLimits[str], Clock]:
    clock = Clock()
    return ConnectionLimits(Limits(total, per_address, unauthenticated), "test", clock), clock


def test_the_oldest_without_the_token_makes_room() -> None:
    limits, _ = of(total=9, per_address=9, unauthenticated=2)
    assert [limits.admit(name, "a", 5) for name in "pqrs"] == [None, None, "p", "q"]
    limits.authenticated("r")
    assert limits.admit("t", "a", 5) is None
    assert limits.admit("u", "a", 5) == "s"
    assert sorted(limits.connections()) == ["r", "t", "u"]


def test_an_address_pushes_out_its_own_only() -> None:
    limits, _ = of(total=9, per_address=2, unauthenticated=9)
    assert limits.admit("other", "b", 5) is None
    assert [limits.admit(name, "a", 5) for name in "pqr"] == [None, None, "p"]
    limits.leave("q")
    assert limits.admit("s", "a", 5) is None


def test_those_with_the_token_are_never_pushed_out() -> None:
    limits, _ = of(total=2, per_address=9, unauthenticated=9)
    for name in "pq":
        limits.admit(name, "a", 5)
        limits.authenticated(name)
    assert limits.admit("r", "b", 5) == "r"
    assert len(limits) == 2
    limits.leave("p")
    limits.leave("p")
    assert limits.admit("r", "b", 5) is None


def test_the_last_descriptors_are_kept_for_files() -> None:
    limits, _ = of(total=9, per_address=9, unauthenticated=9)
    last = descriptor_limit() - RESERVED_DESCRIPTORS
    assert limits.admit("p", "a", last - 1) is None
    assert limits.admit("q", "a", last) == "p"
    limits.authenticated("q")
    assert limits.admit("r", "a", last) == "r"


def test_who_shows_no_token_is_overdue() -> None:
    limits, clock = of(total=9, per_address=9, unauthenticated=9)
    limits.admit("p", "a", 5)
    limits.admit("known", "a", 5)
    limits.authenticated("known")
    clock.now += HEAD_S - 1
    limits.admit("q", "a", 5)
    assert limits.overdue() == []
    clock.now += 1
    assert limits.overdue() == ["p"]
    assert limits.overdue() == []
    assert sorted(limits.connections()) == ["known", "q"]


def test_a_warning_that_repeats_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    warn = Occasional(clock)
    for number in range(1000):
        warn("no room for %d", number)
    assert caplog.messages == ["no room for 0"]
    clock.now += 61
    warn("no room for %d", 7)
    assert caplog.messages[1:] == ["no room for 7 (and 999 more times since the last message)"]


def test_limits_fit_what_the_process_may_open(monkeypatch: pytest.MonkeyPatch) -> None:
    for soft in (64, 256, 1024, 20_000, 1 << 20):
        monkeypatch.setattr(connection_limits, "descriptor_limit", lambda soft=soft: soft)
        for limits in (Limits.of_process(), Limits.of_threads()):
            assert limits.unauthenticated <= limits.per_address <= limits.total <= soft // 2
    assert limits == Limits(1024, 768, 256)
    assert Limits.of_process() == Limits(4096, 3072, 512)


def test_a_service_raises_the_number_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    held = [(256, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda what: held[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda what, limits: held.append(limits))
    assert raise_descriptor_limit() == 4096
    held.append((1024, resource.RLIM_INFINITY))
    assert raise_descriptor_limit() == 1 << 16
    held.append((1 << 20, 1 << 20))
    assert raise_descriptor_limit() == 1 << 20


# --- a service ---------------------------------------------------------------------------------


@asynccontextmanager
async def service(limits: Limits | None = None) -> AsyncIterator[Server]:
    app = create_app("test", TOKEN, max_body_bytes=1000)

    @app.post("/v1/size")
    async def size(request: Request) -> dict[str, int]:
        return {"bytes": len(await request.body())}

    async with Server(app, "127.0.0.1", 0, limits=limits) as server:
        yield server


class Peer:
    """A raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def of(cls, server: Server) -> Peer:
        url = urlsplit(server.url)
        return cls(*await asyncio.open_connection(url.hostname, url.port))

    async def ask(self, *headers: str, body: bytes = b"", token: str = TOKEN) -> int:
        """The status of a POST, whose answer is read."""
        lines = ["POST /v1/size HTTP/1.1", f"Authorization: Bearer {token}", *headers]
        head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""])
        return await self.send(head.encode() + body)

    async def send(self, data: bytes) -> int:
        self.writer.write(data)
        async with asyncio.timeout(WAIT_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split()[0])
            await self.reader.readexactly(length)
        return int(head.split()[1])

    async def is_closed(self) -> None:
        """Wait until the other side has closed."""
        async with asyncio.timeout(WAIT_S):
            with suppress(ConnectionError):
                assert await self.reader.read() == b""

    def close(self) -> None:
        self.writer.close()


def test_a_head_is_bounded() -> None:
    async def main() -> None:
        async with service() as server:
            for lines, status in [
                (["A: " + "x" * (MAX_HEAD - 1000)], 200),
                (["A: " + "x" * MAX_HEAD], 431),
                (["A: " + "x" * (1 << 20)], 431),
                ([f"A{n}: x" for n in range(MAX_HEADERS - 2)], 200),
                ([f"A{n}: x" for n in range(MAX_HEADERS)], 431),
            ]:
                peer = await Peer.of(server)
                assert await peer.ask(*lines) == status, (len(lines[0]), status)
                if status == 200:  # the bound is of each head, and a body is none
                    assert await peer.ask(*lines, body=b"x" * 1000) == status
                    assert await peer.ask(body=b"x" * 200_000) == 413
                peer.close()

    asyncio.run(main())


def test_a_large_body_is_no_head() -> None:
    async def main() -> None:
        app = create_app("test", TOKEN, max_body_bytes=1 << 23)

        @app.post("/v1/size")
        async def size(request: Request) -> dict[str, int]:
            return {"bytes": len(await request.body())}

        async with Server(app, "127.0.0.1", 0) as server:
            peer = await Peer.of(server)
            for length in (MAX_HEAD + 1, 1 << 22):
                assert await peer.ask(body=b"x" * length) == 200
            peer.close()

    asyncio.run(main())


def test_a_new_connection_replaces_a_silent_one_but_none_with_the_token() -> None:
    async def main() -> None:
        async with service(Limits(4, 4, 1)) as server:
            known = await Peer.of(server)
            assert await known.ask() == 200
            stranger = await Peer.of(server)
            assert await stranger.ask(token="wrong") == 401
            newcomer = await Peer.of(server)
            assert await newcomer.ask() == 200
            await stranger.is_closed()
            assert await known.ask() == 200
            known.close()
            newcomer.close()

    asyncio.run(main())


def test_without_a_place_the_answer_is_503() -> None:
    async def main() -> None:
        async with service(Limits(1, 1, 1)) as server:
            known = await Peer.of(server)
            assert await known.ask() == 200
            other = await Peer.of(server)
            assert await other.send(b"") == 503
            known.close()
            await known.writer.wait_closed()
            while server._server.limits.connections():
                await asyncio.sleep(0)
            newcomer = await Peer.of(server)
            assert await newcomer.ask() == 200
            newcomer.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    "begun",
    [b"", b"POST / HTTP/1.1\r\nA: b", b"POST /v1/size HTTP/1.1\r\nContent-Length: 9\r\n\r\nx"],
)
def test_who_shows_no_token_in_time_is_closed(
    monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    monkeypatch.setattr(listener, "_CHECK_EVERY_S", 0.02)

    async def main() -> None:
        async with service() as server:
            known = await Peer.of(server)
            assert await known.ask() == 200
            peer = await Peer.of(server)
            if begun.endswith(b"x"):
                assert await peer.send(begun) == 401
            else:
                peer.writer.write(begun)
            monkeypatch.setattr(connection_limits, "HEAD_S", 0.2)
            await peer.is_closed()
            assert await known.ask() == 200  # an idle one stays
            known.close()

    asyncio.run(main())


@pytest.mark.parametrize("rest", [b"POST / HT", b"POST /v1/size HTTP/1.1\r\nAuthorization: Bearer"])
def test_a_head_of_one_with_the_token_has_a_deadline_too(
    monkeypatch: pytest.MonkeyPatch, rest: bytes
) -> None:
    monkeypatch.setattr(listener, "_CHECK_EVERY_S", 0.02)

    async def main() -> None:
        async with service() as server:
            peer = await Peer.of(server)
            assert await peer.ask() == 200
            monkeypatch.setattr(listener, "HEAD_S", 0.2)
            peer.writer.write(rest)
            await peer.is_closed()

    asyncio.run(main())


def test_a_body_that_does_not_continue_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "BODY_STALLS_S", 0.2)
    monkeypatch.setattr(listener, "_CHECK_EVERY_S", 0.02)

    async def main() -> None:
        async with service() as server:
            peer = await Peer.of(server)
            head = f"POST /v1/size HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 9\r\n\r\nx"
            peer.writer.write(head.encode())
            await peer.is_closed()

    asyncio.run(main())


class Exhausted:
    """A listening socket that can accept only when there are ``descriptors``."""

    def __init__(self, real: socket.socket) -> None:
        self._real, self.descriptors, self.tried = real, False, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def accept(self) -> Any:
        self.tried += 1
        if not self.descriptors:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return self._real.accept()


def test_without_descriptors_accepting_pauses_with_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener, "ACCEPT_AGAIN_S", 0.01)

    async def main() -> None:
        server = Server(create_app("test", TOKEN, 1000), "127.0.0.1", 0)
        listening = Exhausted(server._socket)
        server._socket = listening  # type: ignore[assignment]
        async with server:
            peer = await Peer.of(server)
            async with asyncio.timeout(WAIT_S):
                while listening.tried < 5:
                    await asyncio.sleep(0)
            listening.descriptors = True
            assert await peer.ask() == 404
            peer.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert caplog.messages == ["no connection can be accepted: Too many open files"]
