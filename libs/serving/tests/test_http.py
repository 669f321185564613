"""Calls to a server, and how each way to fail is named."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web

from astraflow_core.errors import DeadlineExceeded
from astraflow_serving.http import ServerClient, ServerRefused, ServerSilent

pytestmark = pytest.mark.timeout(30)
Scenario = Callable[[ServerClient, asyncio.Event], Awaitable[None]]


def run(scenario: Scenario, stall_s: float | None = None) -> None:
    """``scenario(client, asked)`` with a server; ``asked`` is set when a request arrived at ``/never``."""

    async def main() -> None:
        asked = asyncio.Event()

        async def never(request: web.Request) -> web.Response:
            asked.set()
            await asyncio.sleep(60)
            return web.Response()

        async def busy(request: web.Request) -> web.Response:
            headers = {"Retry-After": request.headers.get("Ask", "2")}
            return web.Response(status=503, text="later", headers=headers)

        async def stream(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(b"data: one\n\n: a comment\n\ndata:two\n\ndata: [DONE]\n\n")
            return response

        async def breaks(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(b"data: one\n\n")
            assert request.transport is not None
            request.transport.close()
            return response

        app = web.Application()
        for path, handler in (
            ("/never", never), ("/busy", busy), ("/stream", stream), ("/breaks", breaks),
        ):  # fmt: skip
            app.router.add_route("*", path, handler)
        runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        client = ServerClient("server", f"http://127.0.0.1:{runner.addresses[0][1]}", 20, stall_s)
        try:
            await scenario(client, asked)
        finally:
            await client.close()
            await runner.cleanup()

    asyncio.run(main())


def test_a_call_that_takes_too_long_is_named() -> None:
    async def scenario(client: ServerClient, asked: asyncio.Event) -> None:
        with pytest.raises(DeadlineExceeded, match=r"the server at http://127.*: /never"):
            await client.post("/never", {}, deadline_s=0.1)

    run(scenario)


def test_a_call_that_is_cancelled_ends_as_cancelled() -> None:
    async def scenario(client: ServerClient, asked: asyncio.Event) -> None:
        call = asyncio.ensure_future(client.post("/never", {}))
        await asked.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    run(scenario)


def test_silence_in_the_middle_of_an_answer_is_named() -> None:
    async def scenario(client: ServerClient, asked: asyncio.Event) -> None:
        with pytest.raises(DeadlineExceeded, match="POST /never"):
            await client.ask("/never", {})

    run(scenario, stall_s=0.1)


def test_a_refusal_has_its_status_and_when_to_come_again() -> None:
    async def scenario(client: ServerClient, asked: asyncio.Event) -> None:
        with pytest.raises(ServerRefused, match=r"GET /busy at .*: 503 later") as caught:
            await client.get("/busy")
        assert (caught.value.status, caught.value.after_s) == (503, 2.0)

    run(scenario)


def test_the_events_of_a_stream_come_without_what_is_around_them() -> None:
    async def scenario(client: ServerClient, asked: asyncio.Event) -> None:
        assert [event async for event in client.events("/stream", {})] == [b"one", b"two"]

    run(scenario)


def test_a_connection_that_breaks_and_one_that_is_refused_are_silence() -> None:
    async def scenario(client: ServerClient, asked: asyncio.Event) -> None:
        with pytest.raises(ServerSilent, match="POST /breaks"):
            [event async for event in client.events("/breaks", {})]
        for url in ("http://127.0.0.1:9", "unix:/nowhere/socket"):
            away = ServerClient("server", url, 5)
            with pytest.raises(ServerSilent, match="GET /x"):
                await away.get("/x")
            await away.close()
        await client.close()
        with pytest.raises(ServerSilent):
            await client.get("/busy")

    run(scenario)
