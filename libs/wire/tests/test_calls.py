"""Calls bypass the layers of the web framework, which their callers must not notice."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx
import pytest
from fastapi import Request, Response

from astraflow_core.errors import Refused
from astraflow_wire.host.process import make_full_collections_periodic
from astraflow_wire.http import listener
from astraflow_wire.http.server import Server, ServiceApp, create_app, read_message, reply
from astraflow_wire.messages import Done, LeaveRaas, encode

pytestmark = pytest.mark.timeout(20)
KEY = {"authorization": "Bearer secret"}
HEAD = b"POST /v1/%b HTTP/1.1\r\nhost: here\r\nauthorization: Bearer secret\r\n"


class App:
    """The same handlers as calls, below /v1/call, and as routes of the framework, below /v1/route."""

    def __init__(self) -> None:
        self.app: ServiceApp = create_app("test", "secret", max_body_bytes=1 << 20)
        self.bodies: list[bytes] = []
        self.waiting, self.go_on = asyncio.Event(), asyncio.Event()
        self.gone: list[bool] = []
        for name in ("leave", "keep", "wait"):
            self.app.add_call(f"/v1/call/{name}", getattr(self, name))
            self.app.router.add_route(f"/v1/route/{name}", getattr(self, name), methods=["POST"])

    async def leave(self, request: Request) -> Response:
        message = await read_message(request, LeaveRaas)
        if message.raas == "unknown":
            raise Refused(404, "no such RaaS: 'unknown'")
        if message.raas == "broken":
            raise ValueError("a mistake")
        return reply(Done())

    async def keep(self, request: Request) -> Response:
        self.bodies.append(await request.body())
        return reply(LeaveRaas(raas=str(len(self.bodies)), reason=""))

    async def wait(self, request: Request) -> Response:
        await request.body()
        self.waiting.set()
        await self.go_on.wait()
        self.gone.append(await request.is_disconnected())
        return reply(Done())


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[App, Server]]:
    app = App()
    async with Server(app.app, "127.0.0.1", 0) as server:
        yield app, server


def run(scenario: Callable[[App, Server], Awaitable[None]]) -> None:
    async def main() -> None:
        async with serving() as (app, server):
            await scenario(app, server)

    asyncio.run(main())


REQUESTS = {
    "message": ("POST", KEY, encode(LeaveRaas(raas="r", reason="")), 200),
    "rejected": ("POST", KEY, encode(LeaveRaas(raas="unknown", reason="")), 404),
    "malformed": ("POST", KEY, b"\xc1", 400),
    "broken": ("POST", KEY, encode(LeaveRaas(raas="broken", reason="")), 500),
    "too large": ("POST", KEY, bytes((1 << 20) + 1), 413),
    "no token": ("POST", {}, b"", 401),
    "another method": ("GET", KEY, b"", 405),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_call_is_answered_like_a_route(name: str) -> None:
    method, headers, body, status = REQUESTS[name]

    async def scenario(app: App, server: Server) -> None:
        async with httpx.AsyncClient(base_url=server.url, headers=headers) as client:
            call = await client.request(method, "/v1/call/leave", content=body)
            route = await client.request(method, "/v1/route/leave", content=body)
        assert call.status_code == route.status_code == status
        assert call.content.replace(b"/call/", b"/route/") == route.content
        assert {**call.headers, "date": "", "content-length": ""} == {
            **route.headers,
            "date": "",
            "content-length": "",
        }

    run(scenario)


async def answered(reader: asyncio.StreamReader) -> bytes:
    """The body of the next answer on a connection, which is a 200."""
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
    return await reader.readexactly(int(length))


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_in_pieces_arrives_as_it_was_sent(chunked: bool) -> None:
    pieces = [bytes([n]) * (3 + 40_000 * (n % 2)) for n in range(8)]
    told = (
        b"transfer-encoding: chunked" if chunked else b"content-length: %d" % sum(map(len, pieces))
    )

    async def scenario(app: App, server: Server) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(HEAD % b"call/keep" + told + b"\r\n\r\n")
        for piece in pieces:
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            await writer.drain()
        writer.write(b"0\r\n\r\n" if chunked else b"")
        await answered(reader)
        assert app.bodies == [b"".join(pieces)]
        writer.close()

    run(scenario)


def test_a_call_with_a_short_body_begins_when_the_body_is_complete() -> None:
    async def scenario(app: App, server: Server) -> None:
        state = server._server.server_state
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for length, begins in ((4, False), (listener.MOST_UNREAD + 1, True)):
            body = bytes(length)
            writer.write(HEAD % b"call/keep" + b"content-length: %d\r\n\r\n" % length)
            while True:
                await asyncio.sleep(0)
                (connection,) = state.connections or (None,)
                cycle = connection and connection.cycle
                if cycle is not None and not cycle.response_complete:
                    break
            assert bool(state.tasks) is begins, "one that is not read at once stops the reading"
            writer.write(body)
            await answered(reader)
            assert app.bodies.pop() == body
        writer.close()

    run(scenario)


def test_calls_sent_at_once_are_answered_in_their_order() -> None:
    async def scenario(app: App, server: Server) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        sent = [b"first", b"the second", b"3"]
        requests = [HEAD % b"call/keep" + b"content-length: %d\r\n\r\n" % len(b) + b for b in sent]
        writer.write(b"".join(requests))
        answers = [await answered(reader) for _ in sent]
        assert app.bodies == sent
        assert answers == [encode(LeaveRaas(raas=n, reason="")) for n in ("1", "2", "3")]
        writer.close()

    run(scenario)


@pytest.mark.parametrize("leaves", [False, True])
def test_a_handler_learns_whether_its_caller_is_gone(leaves: bool) -> None:
    async def scenario(app: App, server: Server) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(HEAD % b"call/wait" + b"content-length: 0\r\n\r\n")
        await app.waiting.wait()
        if leaves:
            writer.transport.abort()
            connections = server._server.server_state.connections
            while connections:
                await asyncio.sleep(0)
        app.go_on.set()
        if not leaves:
            await answered(reader)
        while not app.gone:
            await asyncio.sleep(0)
        assert app.gone == [leaves]
        writer.close()

    run(scenario)


def test_a_connection_is_idle_between_requests_only() -> None:
    async def scenario(app: App, server: Server) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(HEAD % b"call/keep" + b"content-length: 1\r\n\r\nx")
        await answered(reader)
        (connection,) = server._server.server_state.connections
        now = asyncio.get_running_loop().time()
        limit = connection.timeout_keep_alive
        assert connection.is_idle(now + limit + 1)
        assert not connection.is_idle(now + limit - 1)
        writer.write(HEAD % b"call/wait" + b"content-length: 0\r\n\r\n")
        await app.waiting.wait()
        assert not connection.is_idle(now + limit + 1)
        app.go_on.set()
        await answered(reader)
        connection.since = -limit
        assert await reader.read() == b"", "the server closes it"
        writer.close()

    run(scenario)


def test_no_full_collection_starts_by_itself() -> None:
    def full_collections() -> int:
        """How often one starts while many objects become old."""
        before = gc.get_stats()[2]["collections"]
        kept = [[n] for n in range(400_000)]
        del kept
        return gc.get_stats()[2]["collections"] - before

    thresholds = gc.get_threshold()
    try:
        gc.set_threshold(700, 10, 10)
        gc.collect()
        assert full_collections() > 0
        make_full_collections_periodic()
        assert full_collections() == 0
        assert gc.get_freeze_count() > 0, "modules are not looked at again"
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
