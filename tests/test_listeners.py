"""Every place where a process of ours listens, and that each lets nobody in who lacks the run's token."""

from __future__ import annotations

import asyncio
import http.client
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from threading import Thread
from typing import Any
from unittest.mock import AsyncMock, MagicMock
from urllib.parse import urlsplit

import dev
import msgspec
import pytest
import zmq
from fastapi import APIRouter, FastAPI
from pages import processes as page
from workspace import ROOT, sources

from astraflow_core.errors import Refused
from astraflow_core.types import Ranks
from astraflow_gateway.server import DIALECTS, Gateway
from astraflow_plugin_zmq.keys import secure
from astraflow_plugin_zmq.messages import MANIFEST, REFUSED
from astraflow_plugin_zmq.server import BlockServer
from astraflow_runtime.dataflow.http.service import DataflowService
from astraflow_runtime.raas.monitor import monitor_app
from astraflow_runtime.trainer.ranks.channel import RankZeroChannel
from astraflow_runtime.trainer.ranks.rank_commands import Hello
from astraflow_runtime.trainer.ranks.rendezvous import RankRendezvous
from astraflow_weights.direct.delivery_server import DeliveryServer
from astraflow_weights.fetch.relay import Relay
from astraflow_weights.publish.server import WeightServer
from astraflow_wire.http.server import Server

TOKEN = "a-token-of-this-run"
WRONG: list[bytes | None] = [
    None,
    b"",
    b"Bearer",
    b"Bearer ",
    b"Bearer another",
    TOKEN.encode(),
    f"Basic {TOKEN}".encode(),
    f"bearer {TOKEN}".encode(),
    f"Bearer  {TOKEN}".encode(),
    f"Bearer {TOKEN}x".encode(),
    f"Bearer {TOKEN[:-1]}".encode(),
    f"Bearer {TOKEN}, Bearer another".encode(),
    b"Bearer \xff\xfe",
    b"Bearer " + b"x" * 10_000,
]
SILENT_MS = 300
"""How long an answer is waited for that must not come."""

PROTECTED_BY = {
    "libs/wire/src/astraflow_wire/http/server.py": "token",
    "libs/weights/src/astraflow_weights/publish/threaded_server.py": "token",
    "runtime/src/astraflow_runtime/trainer/ranks/channel.py": "private folder, or the token's key",
    "runtime/src/astraflow_runtime/raas/engines/host_process.py": "private folder",
    "libs/engine_host/src/astraflow_engine_host/sharing/main.py": "private folder, and a token of each run, attacked by tests of its own",
    "contrib/commands/doctor/src/astraflow_contrib_doctor/trainer_side.py": "private folder",
    "contrib/agent/src/astraflow_contrib_agent/zygote.py": "a folder that agents.py makes private",
    "contrib/verifiers/src/astraflow_contrib_verifiers/verifiers_worker/service.py": "a folder that worker.py makes private",
    "libs/launching/src/astraflow_launching/agent.py": "a folder that it makes private",
    "libs/launching/src/astraflow_launching/dial_in.py": "TLS and a secret of each agent, attacked by tests of its own",
    "plugins/transports/zmq/src/astraflow_plugin_zmq/server.py": "the token's key",
    "plugins/transports/shm/src/astraflow_plugin_shm/publisher.py": "private folder",
    # A store of torch and the connections of gloo and NCCL have no token; the READMEs say so.
    "libs/torch_weights/src/astraflow_torch_weights/group.py": "the network",
    "plugins/trainers/fsdp/src/astraflow_plugin_fsdp/group.py": "the network",
    "plugins/trainers/megatron/src/astraflow_plugin_megatron/meeting.py": "the network",
    "plugins/engines/sglang/src/astraflow_plugin_sglang/sharing.py": "loopback",
    # The public protocol has no key on its weight path; the README says so, and what comes is checked against the sender.
    "contrib/commands/compat/src/astraflow_contrib_compat/weights/receiver.py": "the network",
    # These only find out whether a port is free or an address is of this host.
    "contrib/commands/compat/src/astraflow_contrib_compat/weights/sender.py": "closed at once",
    "contrib/commands/doctor/src/astraflow_contrib_doctor/diagnosis.py": "closed at once",
    "libs/serving/src/astraflow_serving/child_server.py": "closed at once",
    # Part of the conformance suites.
    "testing/src/astraflow_testing/conformance/_transports/link.py": "loopback, in tests",
    "testing/src/astraflow_testing/conformance/_launchers/puppets.py": "loopback, in tests",
}
"""Every file that listens, and the protection against unauthorized clients."""
_LISTENS = re.compile(
    r"\.bind\((?!None)|create_server\(|start_(unix_)?server\(|(?<!class )\bTCPStore\(|HTTPServer\(|socketserver\.\w+Server"
    r"|uvicorn\.(run|Server)\b|web\.(run_app|TCPSite)|\.listen\("
)


def test_every_file_that_listens_is_known() -> None:
    files = {file for package in dev.packages() for file in sources(package.path)}
    found = {
        str(file.relative_to(ROOT)) for file in files if _LISTENS.search(file.read_text("utf-8"))
    }
    assert found == PROTECTED_BY.keys(), (
        "add to PROTECTED_BY the protection against unauthorized clients, and test it below"
    )
    for file, protection in PROTECTED_BY.items():
        text = (ROOT / file).read_text("utf-8")
        if "private folder" in protection:
            assert re.search(r"socket_folder|PrivateFolder|sockets", text), file
        if "key" in protection:
            assert re.search(r"\bsecure\(", text), file


SERVED = {
    "libs/gateway/src/astraflow_gateway/server.py": "keys of episodes, attacked below",
    "libs/weights/src/astraflow_weights/direct/delivery_server.py": "attacked below",
    "libs/weights/src/astraflow_weights/publish/server.py": "attacked below",
    "runtime/src/astraflow_runtime/dataflow/main.py": "attacked below",
    "runtime/src/astraflow_runtime/raas/main.py": "attacked below",
    "contrib/commands/pages/src/astraflow_contrib_pages/serving.py": "logins, attacked by tests of its own",
    "contrib/commands/mcp/src/astraflow_contrib_mcp/serving.py": "a token of its own, attacked by tests of its own",
    "contrib/commands/pool/src/astraflow_contrib_pool/serving.py": "tokens of its own, attacked by tests of its own",
    "contrib/commands/raas_check/src/astraflow_contrib_raas_check/scripted.py": "the guard of a dataflow",
    "contrib/commands/tinker/src/astraflow_contrib_tinker/serving.py": "a key of its own, attacked by tests of its own",
    "contrib/commands/compat/src/astraflow_contrib_compat/serving.py": "a key of its own, attacked by tests of its own",
    "contrib/commands/compat/src/astraflow_contrib_compat/ours/serving.py": "a key of its own, attacked by tests of its own",
    "contrib/commands/compat/src/astraflow_contrib_compat/trainer/serving.py": "a key of its own, attacked by tests of its own",
    "contrib/commands/compat/src/astraflow_contrib_compat/raas/session.py": "the registered host, attacked by tests of its own",
    "contrib/commands/replay_run/src/astraflow_contrib_replay_run/service.py": "the guard of a dataflow",
}
"""Every file that has one of our two HTTP servers listen."""
_SERVES = re.compile(
    r"^from (astraflow_wire\.http\.server import .*\bServer\b|astraflow_weights\.publish\.threaded_server )", re.MULTILINE
)  # fmt: skip


def test_every_file_that_serves_is_known() -> None:
    files = {file for package in dev.packages() for file in sources(package.path)}
    found = {
        str(file.relative_to(ROOT)) for file in files if _SERVES.search(file.read_text("utf-8"))
    }
    assert found == SERVED.keys(), "attack it below, and say so in SERVED"


# --- over HTTP ---------------------------------------------------------------------------------


@dataclass
class Listener:
    """Where something listens, and all that it answers: method and path."""

    port: int
    routes: list[tuple[str, str]]


@contextmanager
def running(app: FastAPI, routes: list[tuple[str, str]]) -> Iterator[Listener]:
    """An app behind its real server, in a thread."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()
    server = Server(app, "127.0.0.1", 0)
    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result(20)
        yield Listener(int(urlsplit(server.url).port or 0), routes)
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def routes_of(app: FastAPI) -> list[tuple[str, str]]:
    return [(each.method, each.path) for each in page.endpoints(app)]


def added() -> APIRouter:
    """What a plugin adds to a service."""
    router = APIRouter()
    router.add_api_route("/v1/added", lambda: "let in", methods=["GET"])
    return router


def dataflow(stack: ExitStack) -> Listener:
    touched = MagicMock(side_effect=AssertionError("let in"))
    app = DataflowService(touched, touched, TOKEN, [added()]).app
    return stack.enter_context(running(app, [*routes_of(app), ("GET", "/v1/added")]))


def raas(stack: ExitStack) -> Listener:
    app = monitor_app(TOKEN, lambda: True, dict, dict, bytes, [added()])
    return stack.enter_context(running(app, [*routes_of(app), ("GET", "/v1/added")]))


VERSION = "/v1/weights/solver/1"
WEIGHTS = [
    ("GET", f"{VERSION}/manifest"),
    ("GET", f"{VERSION}/data"),
    ("GET", f"{VERSION}/objects/direct"),
    ("DELETE", f"{VERSION}/readers/me"),
]


def weights(stack: ExitStack) -> Listener:
    server = stack.enter_context(closing(WeightServer({}, TOKEN, "127.0.0.1", 0)))
    return Listener(server.port, WEIGHTS)


def relay(stack: ExitStack) -> Listener:
    relaying = stack.enter_context(closing(Relay(TOKEN)))
    return Listener(relaying.port("127.0.0.1"), WEIGHTS)


def desk(stack: ExitStack) -> Listener:
    def let_in(*asked: object) -> Any:
        raise Refused(409, "let in")

    asked = stack.enter_context(
        closing(DeliveryServer("127.0.0.1", "solver", TOKEN, let_in, let_in))
    )
    direct = "/v1/direct/solver/1"
    return Listener(asked.port, [("POST", direct), ("DELETE", f"{direct}/ticket")])


@pytest.mark.parametrize("start", [dataflow, raas, weights, relay, desk])
def test_requests_without_the_token_are_rejected(start: Callable[[ExitStack], Listener]) -> None:
    with ExitStack() as stack:
        listener = start(stack)
        assert len(listener.routes) > 1
        for method, path in [*listener.routes, ("GET", "/"), ("GET", f"/?token={TOKEN}")]:
            for given in WRONG:
                if start is desk and method == "GET":
                    continue  # 501, before anything is read
                assert status(listener.port, method, path, given) == 401, (method, path, given)
        method, path = listener.routes[-1]
        assert status(listener.port, method, path, f"Bearer {TOKEN}".encode()) != 401


def test_no_one_asks_a_model_without_the_key_of_an_open_episode() -> None:
    routes = [("GET", "/v1/models"), ("GET", "/v1/models/p")]
    for dialect in DIALECTS:
        routes += [("POST", dialect.path), *((each.method, each.path) for each in dialect.routes)]

    async def play() -> None:
        async with Gateway() as gateway:
            port, episode = int(urlsplit(gateway.url).port or 0), AsyncMock()
            key = gateway.begin(episode)
            near = [
                f"Bearer {key}x".encode(),
                f"Bearer {key[:-1]}".encode(),
                f"Basic {key}".encode(),
            ]
            for method, path in routes:
                for given in (*WRONG, *near):
                    answer = await asyncio.to_thread(status, port, method, path, given)
                    assert answer == 401, (method, path, given)
                below = f"/e/{key}x{path}"
                assert await asyncio.to_thread(status, port, method, below, None) == 401, below
            assert episode.mock_calls == []
            ended = gateway.begin(AsyncMock())
            await gateway.end(ended)
            with_key = f"Bearer {ended}".encode()
            assert await asyncio.to_thread(status, port, "GET", "/v1/models", with_key) == 401

    asyncio.run(play())


def status(port: int, method: str, path: str, authorization: bytes | None) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    headers = {} if authorization is None else {"Authorization": authorization}
    with closing(connection):
        connection.request(method, path, headers=headers)
        return connection.getresponse().status


# --- over ZeroMQ -------------------------------------------------------------------------------


@pytest.fixture
def stranger() -> Iterator[Callable[[str, str | None], zmq.Socket[bytes]]]:
    """Connect with the key of a token, or without one."""
    with zmq.Context() as context, ExitStack() as stack:

        def connect(address: str, token: str | None) -> zmq.Socket[bytes]:
            socket = stack.enter_context(context.socket(zmq.DEALER))
            socket.linger = 0
            if token is not None:
                secure(socket, token, server=False)
            socket.connect(address)
            return socket

        yield connect


@pytest.mark.parametrize("token", [None, "", "another", TOKEN + "x"])
def test_the_transport_zmq_answers_no_one_without_the_token(
    stranger: Callable[[str, str | None], zmq.Socket[bytes]], token: str | None
) -> None:
    with closing(BlockServer(MagicMock(), "solver", TOKEN, "127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.port}"
        outside = stranger(address, token)
        outside.send_multipart([MANIFEST, b"1", b"me"])
        assert not outside.poll(SILENT_MS)
        inside = stranger(address, TOKEN)
        inside.send_multipart([b"anything", b"1", b"me"])
        assert inside.poll(20_000) and inside.recv_multipart()[0] == REFUSED


def test_ranks_on_several_hosts_accept_no_connection_without_the_token(
    stranger: Callable[[str, str | None], zmq.Socket[bytes]],
) -> None:
    variables = {"MASTER_ADDR": "127.0.0.1", "LOCAL_WORLD_SIZE": "1"}
    here = RankRendezvous.of("trainer-solver", Ranks(0, 2, 0, 20.0), TOKEN, variables)
    there = replace(here, ranks=Ranks(1, 2, 0, 20.0))
    other = RankRendezvous.of("trainer-solver", there.ranks, "another", variables)
    hub = RankZeroChannel(here)
    try:
        with zmq.Context() as context, ExitStack() as stack:
            for keys in (other, None, there):
                socket = stack.enter_context(context.socket(zmq.DEALER))
                socket.linger = 0
                socket.setsockopt(zmq.ROUTING_ID, b"1")
                if keys is not None:
                    keys.secure(socket, server=False)
                socket.connect(f"tcp://127.0.0.1:{here.port}")
                socket.send(msgspec.msgpack.encode(Hello(1, 2)))
                if keys is not there:
                    assert not hub._socket.poll(SILENT_MS)
            assert hub._socket.poll(20_000)
    finally:
        hub.close()
