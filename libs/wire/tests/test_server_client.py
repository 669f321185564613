from __future__ import annotations

import asyncio
import io
import logging
import pickle
import socket
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx
import pytest
from fastapi import FastAPI, Request, Response
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow_core.errors import DeadlineExceeded, Refused, UserError
from astraflow_runtime.telemetry.logs import LineFormatter
from astraflow_wire.http.client import AsyncClient, SyncClient
from astraflow_wire.http.server import (
    PIECE_BYTES,
    Server,
    _pieces,
    create_app,
    frame,
    read_message,
    reply,
)
from astraflow_wire.messages import Done, LeaveRaas, encode

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
        client = AsyncClient(url, "secret")
        message = LeaveRaas(raas="r", reason="done")
        assert await client.post("/v1/leave", message, Done, deadline_s=5) == Done()
        await client.aclose()

    run(scenario)


@pytest.mark.parametrize("token", ["", "wrong", "Secret"])
def test_a_wrong_token_is_refused(token: str) -> None:
    async def scenario(url: str) -> None:
        client = AsyncClient(url, token)
        with pytest.raises(Refused) as caught:
            await client.post("/v1/leave", LeaveRaas(raas="r", reason=""), Done, deadline_s=5)
        assert caught.value.status == 401
        reason = str(caught.value)
        assert "pass a valid one with --token-file, or in ASTRAFLOW_TOKEN" in reason
        record = logging.LogRecord("x", logging.ERROR, "", 0, reason, None, None)
        assert reason in LineFormatter("x").format(record)  # nothing of it is taken for a secret
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


def test_who_writes_a_large_body_to_its_end_reads_why_it_is_refused() -> None:
    def ask(url: str) -> tuple[int, str]:
        headers = {"authorization": "Bearer secret"}
        # It asks to close, as this client always does, so that the reply ends the connection.
        request = urllib.request.Request(f"{url}/v1/leave", bytes(9 << 20), headers)
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=60)
        return caught.value.code, caught.value.read().decode()

    async def scenario(url: str) -> None:
        status, said = await asyncio.to_thread(ask, url)
        assert status == 413 and "the body is over 1000 bytes" in said

    run(scenario)


def test_who_goes_away_within_a_request_leaves_one_line_for_those_who_debug(
    caplog: pytest.LogCaptureFixture,
) -> None:
    head = b"POST /v1/leave HTTP/1.1\r\nhost: x\r\nauthorization: Bearer secret\r\n"
    ended = asyncio.Event()
    app = make_app()

    class Ends(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            ended.set()

    async def scenario(url: str) -> None:
        handler = Ends()
        logging.getLogger().addHandler(handler)
        try:
            for length, begins in (
                (b"content-length: 500", False),
                (b"transfer-encoding: chunked", True),
            ):
                ended.clear()
                host, _, port = url.removeprefix("http://").rpartition(":")
                _, writer = await asyncio.open_connection(host, int(port))
                writer.write(head + length + b"\r\n\r\n5\r\nhello\r\n")
                await writer.drain()
                while begins and app.state.calls == 0:
                    await asyncio.sleep(0.001)
                writer.close()
                await ended.wait()
                app.state.calls = 0
        finally:
            logging.getLogger().removeHandler(handler)

    with caplog.at_level(logging.DEBUG, "astraflow_wire.http.server"):
        run(scenario, app)
    said = [(record.levelno, record.getMessage()) for record in caplog.records]
    line = (logging.DEBUG, "a caller disconnected during its POST /v1/leave")
    assert [each for each in said if each == line or each[0] > logging.INFO] == [line, line]


def test_a_refusal_carries_its_reason() -> None:
    async def scenario(url: str) -> None:
        client = AsyncClient(url, "secret")
        with pytest.raises(Refused, match="no such RaaS: 'unknown'") as caught:
            await client.post("/v1/leave", LeaveRaas(raas="unknown", reason=""), Done, deadline_s=5)
        assert caught.value.status == 404
        await client.aclose()

    run(scenario)


def test_a_request_to_a_busy_service_is_retried() -> None:
    app = make_app()

    async def scenario(url: str) -> None:
        client = AsyncClient(url, "secret")
        await client.post("/v1/leave", LeaveRaas(raas="flaky", reason=""), Done, deadline_s=10)
        await client.aclose()

    run(scenario, app)
    assert app.state.calls == 3


def test_a_request_whose_reply_was_lost_is_repeated_before_the_deadline() -> None:
    app = make_app()
    forever = asyncio.Event()

    @app.post("/v1/lost")
    async def lost(request: Request) -> Response:
        app.state.calls += 1
        if app.state.calls < 3:
            await forever.wait()
        return reply(Done())

    async def scenario(url: str) -> None:
        client = AsyncClient(url, "secret")
        message = LeaveRaas(raas="r", reason="")
        answer = await client.post("/v1/lost", message, Done, deadline_s=15, first_try_s=0.05)
        assert answer == Done()
        forever.set()
        await client.aclose()

    run(scenario, app)
    assert app.state.calls >= 3


def test_a_dead_service_is_named_at_the_deadline() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"

    async def main() -> None:
        client = AsyncClient(url, "secret")
        with pytest.raises(DeadlineExceeded, match=url):
            await client.post("/v1/leave", LeaveRaas(raas="r", reason=""), Done, deadline_s=0.3)
        await client.aclose()

    asyncio.run(main())


def test_a_port_in_use_and_an_open_address_without_token_are_the_users_mistakes() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"cannot listen on 127.0.0.1:{port}: .*another port"):
            Server(make_app(), "127.0.0.1", port)
    for elsewhere in ("192.0.2.1", "no-such-host.invalid"):
        with pytest.raises(UserError, match="address of this machine") as refused:
            Server(make_app(), elsewhere, 0)
        assert "port" not in str(refused.value)
    with pytest.raises(UserError, match="without a token"):
        Server(make_app(token=""), "0.0.0.0", 0)


def echo_app() -> FastAPI:
    app = create_app("test", "secret", max_body_bytes=32 << 20)

    @app.post("/v1/echo")
    async def echo(request: Request) -> Response:
        return frame(await request.body())

    return app


@pytest.mark.parametrize("size", [1, PIECE_BYTES, PIECE_BYTES + 1, 7_000_003])
def test_a_frame_of_any_size_arrives_whole_at_both_clients(size: int) -> None:
    sent = LeaveRaas(raas="r", reason="x" * size)

    async def scenario(url: str) -> None:
        client, blocking = AsyncClient(url, "secret"), SyncClient(url, "secret")
        for _ in range(2):  # over one connection
            assert await client.post_for_bytes("/v1/echo", sent, deadline_s=10) == encode(sent)
            came = await asyncio.to_thread(
                blocking.post_for_bytes, "/v1/echo", sent, deadline_s=10.0
            )
            assert came == encode(sent)
        await client.aclose()
        blocking.close()

    run(scenario, echo_app())


def test_the_blocking_client_tries_again_gives_up_and_takes_refusals() -> None:
    async def scenario(url: str) -> None:
        client = SyncClient(url, "secret")

        def post(raas: str) -> Done:
            return client.post("/v1/leave", LeaveRaas(raas=raas, reason=""), Done, deadline_s=5)

        assert await asyncio.to_thread(post, "flaky") == Done()
        with pytest.raises(Refused, match="no such RaaS") as caught:
            await asyncio.to_thread(post, "unknown")
        assert caught.value.status == 404
        client.close()

    run(scenario)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = SyncClient(f"http://127.0.0.1:{silent.getsockname()[1]}", "secret")
        with pytest.raises(DeadlineExceeded, match="/v1/status"):
            client.get_json("/v1/status", deadline_s=0.3)
        client.close()


def test_the_blocking_client_outlives_a_server_that_closed_its_connection() -> None:
    async def call(client: SyncClient) -> Done:
        message = LeaveRaas(raas="r", reason="")
        return await asyncio.to_thread(client.post, "/v1/leave", message, Done, deadline_s=5.0)

    async def main() -> None:
        first = Server(make_app(), "127.0.0.1", 0)
        await first.start()
        client = SyncClient(first.url, "secret")
        assert await call(client) == Done()
        await first.stop()
        second = Server(make_app(), "127.0.0.1", int(first.url.rpartition(":")[2]))
        await second.start()
        assert await call(client) == Done()
        await second.stop()
        client.close()

    asyncio.run(main())


def test_the_blocking_client_serves_threads_at_once() -> None:
    async def scenario(url: str) -> None:
        client = SyncClient(url, "secret")
        message = LeaveRaas(raas="r", reason="x" * 100_000)
        calls = [
            asyncio.to_thread(client.post_for_bytes, "/v1/echo", message, deadline_s=10.0)
            for _ in range(16)
        ]
        assert set(await asyncio.gather(*calls)) == {encode(message)}
        client.close()

    run(scenario, echo_app())


@given(st.lists(st.binary(max_size=30), max_size=12))
@settings(deadline=None)
def test_the_pieces_of_a_frame_are_its_parts(parts: list[bytes]) -> None:
    pieces = list(_pieces(parts, most=10))
    assert b"".join(pieces) == b"".join(parts)
    assert all(0 < len(piece) <= 10 for piece in pieces)


class Listener:
    """In the place of a socket: keeps what is sent, and answers nothing."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def settimeout(self, seconds: float) -> None:
        """Nothing waits."""

    def sendall(self, data: bytes) -> None:
        self.sent.append(bytes(data))

    def makefile(self, mode: str) -> io.BufferedReader:
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
        return io.BufferedReader(io.BytesIO(answer))  # type: ignore[arg-type]

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("size", [0, 100, 1 << 20])
def test_a_small_request_is_sent_at_once_and_a_large_body_is_not_copied(size):
    client, body = SyncClient("http://127.0.0.1:9", "secret"), bytes(size)
    connection = client._connection(1.0)
    connection.sock = listener = Listener()
    client._idle.append(connection)
    assert client._request("POST", "/v1/x", body, 1.0) == (200, b"ok")
    head, _, sent = b"".join(listener.sent).partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/x HTTP/1.1\r\n") and sent == body
    assert len(listener.sent) == (2 if size > 1 << 16 else 1)
