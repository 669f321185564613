"""The real vllm-router in front of stand-ins for two servers: they serve the routes that the engine calls, and sample
no real tokens."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from aiohttp import web

from astraflow_core.errors import AstraFlowError
from astraflow_core.types import GenerateRequest, Sampling, WeightSource
from astraflow_plugin_vllm.config import VllmConfig
from astraflow_plugin_vllm.engine import VllmEngine
from astraflow_testing.conformance.subject import context

pytestmark = [pytest.mark.backend, pytest.mark.timeout(240)]
GENERATE = "/inference/v1/generate"
START_S, SCENARIO_S = 90.0, 120.0


class StandIn:
    """``calls`` are paths and sessions as they came; ``held`` keeps requests until it is set."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str | None]] = []
        self.version, self.held = "0", asyncio.Event()
        self.held.set()
        self.url = ""

    async def start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        await self._runner.cleanup()

    def sessions(self) -> list[str | None]:
        return [session for path, session in self.calls if path == GENERATE]

    async def _answer(self, request: web.Request) -> web.Response:
        self.calls.append((request.path, request.headers.get("X-Session-ID")))
        body = json.loads(await request.read() or b"{}")
        match request.path:
            case "/version":
                return web.json_response({"version": "0.32.0"})
            case "/v1/models":
                return web.json_response({"data": [{"id": "m", "max_model_len": 64}]})
            case "/metrics":
                return web.Response(text='vllm:generation_tokens_total{engine="0"} 7.0\n')
            case "/finish_weight_update":
                self.version = body["weight_version"]
            case path if path == GENERATE:
                await self.held.wait()
                return web.json_response(self._sampled(body["sampling_params"]["max_tokens"]))
        return web.json_response({})

    def _sampled(self, count: int) -> dict[str, Any]:
        choice = {
            "token_ids": [2] * count,
            "finish_reason": "length",
            "logprobs": {"content": [{"logprob": -1.0}] * count},
            "weight_versions": [{"version": self.version, "start": 0, "end": count}],
        }
        return {"choices": [choice]}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def routed(servers: list[StandIn], log: Path, policy: str) -> AsyncIterator[str]:
    """The URL of the router, once it has found all servers to be well."""
    url = f"http://127.0.0.1:{free_port()}"
    command = [
        sys.executable, "-m", "vllm_router.launch_router", "--host", "127.0.0.1",
        "--port", url.rpartition(":")[2], "--prometheus-port", str(free_port()), "--policy", policy,
        "--worker-urls", *(server.url for server in servers),
    ]  # fmt: skip
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    try:
        give_up = time.monotonic() + START_S
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as http:
            while not await is_ready(http, url):
                assert process.poll() is None and time.monotonic() < give_up, log.read_text()
                await asyncio.sleep(0.1)
        yield url
    finally:
        process.terminate()
        try:
            await asyncio.to_thread(process.wait, 20)
        finally:
            process.kill()
            process.wait()


async def is_ready(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(f"{url}/readiness") as answer:
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


@pytest.fixture
def model(tmp_path: Path, write_model: Callable[..., Path]) -> Path:
    return write_model(tmp_path / "model")


def run(
    scenario: Callable[[list[VllmEngine], list[StandIn]], Coroutine[Any, Any, None]],
    model: Path,
    policy: str,
) -> None:
    """``scenario`` with the engines of two replicas behind a router of that policy."""

    async def main() -> None:
        servers = [StandIn(), StandIn()]
        async with asyncio.timeout(SCENARIO_S):
            for server in servers:
                await server.start()
            async with routed(servers, model.parent / "router.log", policy) as url:
                config = VllmConfig(url=tuple(server.url for server in servers), router=url)
                here = context("engine", model.parent)
                engines = [
                    VllmEngine(config, replace(here, replica=n, replicas=2)) for n in range(2)
                ]
                try:
                    for engine in engines:
                        await engine.start(model)
                    await scenario(engines, servers)
                finally:
                    for engine in engines:
                        await engine.close()
            for server in servers:
                await server.stop()

    asyncio.run(main())


def request(name: str, **more: Any) -> GenerateRequest:
    return GenerateRequest(name, np.array((5, 9), np.int32), Sampling(4), **more)


def test_requests_are_spread_and_control_reaches_every_replica(model: Path) -> None:
    async def scenario(engines: list[VllmEngine], servers: list[StandIn]) -> None:
        results = [await engines[0].generate(request(f"r{n}")) for n in range(4)]
        assert [len(server.sessions()) for server in servers] == [2, 2]
        assert {int(v) for result in results for v in result.versions} == {0}
        for seen, engine in zip(([0, 0, 7, 7], [7, 7, 7, 7]), reversed(engines), strict=True):
            await engine.pause("keep")
            source = WeightSource("solver", 7, model / "model.safetensors", "", 0, 0.0)
            await engine.load_weights(source)
            await engine.resume()
            after = [await engines[0].generate(request(f"{len(seen)}-{n}")) for n in range(4)]
            assert sorted(int(result.versions[0]) for result in after) == seen
        pinned = await engines[1].generate(request("p", pinned_version=7))
        assert set(pinned.versions.tolist()) == {7}

    run(scenario, model, "round_robin")


def test_a_session_stays_at_the_server_that_has_its_prefix(model: Path) -> None:
    async def scenario(engines: list[VllmEngine], servers: list[StandIn]) -> None:
        sessions = [f"episode-{number}" for number in range(12)]
        for turn in range(3):
            for engine in engines:
                for session in sessions:
                    await engine.generate(
                        request(f"{session}-{turn}-{id(engine)}", session=session)
                    )
        first, second = (set(server.sessions()) for server in servers)
        assert not first & second
        assert first | second == set(sessions)

    run(scenario, model, "consistent_hash")


def test_the_death_of_a_replica_leaves_the_others_at_work(model: Path) -> None:
    async def scenario(engines: list[VllmEngine], servers: list[StandIn]) -> None:
        for server in servers:
            server.held.clear()
        sent = [asyncio.ensure_future(engines[0].generate(request(f"r{n}"))) for n in range(2)]
        while not all(server.sessions() for server in servers):
            await asyncio.sleep(0.005)
        await servers[1].stop()
        servers[0].held.set()
        ended = await asyncio.gather(*sent, return_exceptions=True)
        lost = [end for end in ended if isinstance(end, BaseException)]
        assert all(isinstance(error, AstraFlowError) for error in lost), ended
        for number in range(4):
            result = await engines[0].generate(request(f"q{number}"))
            assert result.tokens.tolist() == [2] * 4
        assert await engines[0]._running.progress() == 7.0  # a dead server has sampled nothing more
        with pytest.raises(AstraFlowError):
            await engines[1].generate(request("p", pinned_version=0))

    run(scenario, model, "round_robin")
