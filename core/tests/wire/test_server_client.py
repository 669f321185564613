from __future__ import annotations

import asyncio
import pickle
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx
import pytest
from fastapi import FastAPI, Request, Response

from astraflow_core.errors import DeadlineExceeded, Refused, UserError
from astraflow_core.wire.client import Client
from astraflow_core.wire.messages import Done, LeaveRaas
from astraflow_core.wire.server import Server, create_app, read_message, reply

pytestmark = pytest.mark.timeout(20)


def make_app(token: str = "secret") -> FastAPI:
    app = create_app("test", token, max_body_bytes=1000)
    app.state.calls = 0

    @app.post("/v1/leave")
    async def leave(request: Request) -> Response:
        app.state.calls += 1
        message = await read_message(request, LeaveRaas)
        if message.raas == "unknown":
            raise Refused(404, "no such RaaS: 'unknown'")
        if message.raas == "flaky" and app.state.calls < 3:
            return Response("busy", status_code=503)
        return reply(Done())

    return app


@asynccontextmanager
async def serving(app: FastAPI) -> AsyncIterator[str]:
    server = Server(app, "127.0.0.1", 0)
    await server.start()
    try:
        yield server.url
    finally:
        await server.stop()


def run(scenario: Callable[[str], Awaitable[None]], app: FastAPI | None = None) -> None:
    async def main() -> None:
        async with serving(app or make_app()) as url:
            await scenario(url)

    asyncio.run(main())


def test_a_message_goes_there_and_back() -> None:
    async def scenario(url: str) -> None:
        client = Client(url, "secret")
        message = LeaveRaas(raas="r", reason="done")
        assert await client.post("/v1/leave", message, Done, deadline_s=5) == Done()
        await client.aclose()

    run(scenario)


@pytest.mark.parametrize("token", ["", "wrong", "Secret"])
def test_a_wrong_token_is_refused(token: str) -> None:
    async def scenario(url: str) -> None:
        client = Client(url, token)
        with pytest.raises(Refused) as caught:
            await client.post("/v1/leave", LeaveRaas(raas="r", reason=""), Done, deadline_s=5)
        assert caught.value.status == 401
        await client.aclose()

    run(scenario)


def test_pickle_and_large_bodies_and_unknown_fields_are_refused() -> None:
    async def scenario(url: str) -> None:
        headers = {"authorization": "Bearer secret"}
        async with httpx.AsyncClient(base_url=url, headers=headers) as http:
            pickled = await http.post("/v1/leave", content=pickle.dumps({"raas": "r"}))
            assert pickled.status_code == 400
            assert "expected a msgpack LeaveRaas" in pickled.json()["error"]
            large = await http.post("/v1/leave", content=b"x" * 1001)
            assert large.status_code == 413

            async def chunks() -> AsyncIterator[bytes]:
                for _ in range(20):
                    yield b"x" * 100

            assert (await http.post("/v1/leave", content=chunks())).status_code == 413

    run(scenario)


def test_a_refusal_carries_its_reason() -> None:
    async def scenario(url: str) -> None:
        client = Client(url, "secret")
        with pytest.raises(Refused, match="no such RaaS: 'unknown'") as caught:
            await client.post("/v1/leave", LeaveRaas(raas="unknown", reason=""), Done, deadline_s=5)
        assert caught.value.status == 404
        await client.aclose()

    run(scenario)


def test_a_busy_service_is_asked_again() -> None:
    app = make_app()

    async def scenario(url: str) -> None:
        client = Client(url, "secret")
        await client.post("/v1/leave", LeaveRaas(raas="flaky", reason=""), Done, deadline_s=10)
        await client.aclose()

    run(scenario, app)
    assert app.state.calls == 3


def test_a_dead_service_is_named_at_the_deadline() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"

    async def main() -> None:
        client = Client(url, "secret")
        with pytest.raises(DeadlineExceeded, match=url):
            await client.post("/v1/leave", LeaveRaas(raas="r", reason=""), Done, deadline_s=0.3)
        await client.aclose()

    asyncio.run(main())


def test_a_port_in_use_and_an_open_address_without_token_are_the_users_mistakes() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UserError, match="cannot listen on 127"):
            Server(make_app(), "127.0.0.1", taken.getsockname()[1])
    with pytest.raises(UserError, match="without a token"):
        Server(make_app(token=""), "0.0.0.0", 0)
