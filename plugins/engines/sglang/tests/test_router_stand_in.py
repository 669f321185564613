"""Two engines behind one router, a small reverse proxy of this test's own, against stand-ins for two servers."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from aiohttp import web
from pydantic import ValidationError

from astraflow_core.errors import AstraFlowError, PreflightError
from astraflow_core.types import GenerateRequest, GenerateResult, Sampling, WeightSource
from astraflow_plugin_sglang.config import SGLangConfig
from astraflow_plugin_sglang.engine import SGLangEngine
from astraflow_testing.conformance.subject import context

SHORT, LONG = Sampling(8), Sampling(400, ignore_eos=True)


class Router:
    """Sends each request to the next server, and passes answers on as they come. ``seen``: path and session."""

    def __init__(self, servers: list[str]) -> None:
        self._next = itertools.cycle(servers)
        self.seen: list[tuple[str, str | None]] = []
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    async def _listen(self) -> None:
        self._http = aiohttp.ClientSession()
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _end(self) -> None:
        await self._http.close()
        await self._runner.cleanup()

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        self.seen.append((request.path, request.headers.get("X-Session-ID")))
        headers = {"Content-Type": "application/json"}
        async with self._http.post(
            next(self._next) + request.path, data=await request.read(), headers=headers
        ) as answer:
            response = web.StreamResponse(status=answer.status, headers=answer.headers.copy())
            response.headers.popall("Transfer-Encoding", None)
            await response.prepare(request)
            async for part in answer.content.iter_any():
                await response.write(part)
        return response


@pytest.fixture
def router(servers: list[Any]) -> Iterator[Router]:
    made = Router([server.url for server in servers])
    made.start()
    yield made
    made.stop()


def run(
    servers: list[Any],
    router: Router,
    model: Path,
    scenario: Callable[[list[SGLangEngine]], Coroutine[Any, Any, None]],
) -> None:
    config = SGLangConfig(url=tuple(server.url for server in servers), router=router.url)

    async def main() -> None:
        engines = [
            SGLangEngine(config, replace(context("engine", model.parent), replica=n, replicas=2))
            for n in range(2)
        ]
        async with asyncio.timeout(30):
            try:
                for engine in engines:
                    await engine.start(model)
                await scenario(engines)
            finally:
                for engine in engines:
                    await engine.close()

    asyncio.run(main())


def request(name: str, sampling: Sampling = SHORT, **more: Any) -> GenerateRequest:
    return GenerateRequest(name, np.array((5, 9, 3), np.int32), sampling, **more)


def paths(server: Any) -> set[str]:
    return {path for path, _ in server.calls}


def test_requests_go_through_the_router_and_control_does_not(
    servers: list[Any], router: Router, model: Path
) -> None:
    async def scenario(engines: list[SGLangEngine]) -> None:
        for number in range(4):
            await engines[0].generate(request(f"r{number}", session="s"))
        assert [len(server.bodies("/generate")) for server in servers] == [2, 2]
        assert router.seen == [("/generate", "s")] * 4
        for server in servers:
            server.calls.clear()
        await engines[1].pause("keep")
        await engines[1].resume()
        assert paths(servers[0]) == set()
        assert paths(servers[1]) == {"/pause_generation", "/continue_generation"}
        assert len(router.seen) == 4

    run(servers, router, model, scenario)


def test_tokens_carry_the_version_of_the_server_that_sampled_them(
    servers: list[Any], router: Router, model: Path
) -> None:
    async def scenario(engines: list[SGLangEngine]) -> None:
        await engines[1].pause("wait")
        await engines[1].load_weights(
            WeightSource("solver", 7, model / "model.safetensors", "", 0, 0.0)
        )
        await engines[1].resume()
        results = [await engines[0].generate(request(f"r{n}")) for n in range(4)]
        assert sorted(int(result.versions[0]) for result in results) == [0, 0, 7, 7]
        for number in range(3):
            pinned = await engines[1].generate(request(f"p{number}", pinned_version=7))
            assert set(pinned.versions.tolist()) == {7}
        assert (
            len(router.seen) == 4
        )  # a pinned request goes to the one server that is known to serve it

    run(servers, router, model, scenario)


@pytest.mark.parametrize("by", ["abort", "cancel"])
def test_a_request_that_runs_on_the_other_server_can_be_ended(
    servers: list[Any], router: Router, model: Path, by: str
) -> None:
    async def until(condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.002)

    async def scenario(engines: list[SGLangEngine]) -> None:
        sent = [
            asyncio.ensure_future(engines[0].generate(request(f"r{n}", LONG))) for n in range(2)
        ]
        await until(lambda: all(server.running for server in servers))
        if by == "abort":
            await engines[0].abort(["r0", "r1"])
            ended: list[GenerateResult] = await asyncio.gather(*sent)
            assert [result.finish_reason for result in ended] == ["abort", "abort"]
        else:
            for future in sent:
                future.cancel()
            await asyncio.gather(*sent, return_exceptions=True)
        await until(lambda: not any(server.running for server in servers))

    run(servers, router, model, scenario)


def test_a_router_that_is_gone_is_named(servers: list[Any], router: Router, model: Path) -> None:
    async def scenario(engines: list[SGLangEngine]) -> None:
        await asyncio.to_thread(
            asyncio.run_coroutine_threadsafe(router._end(), router._loop).result, 10
        )
        router._end = _nothing  # type: ignore[method-assign]
        with pytest.raises(AstraFlowError, match=router.url):
            await engines[0].generate(request("r"))
        assert len((await engines[0].generate(request("p", pinned_version=0))).tokens) > 0

    run(servers, router, model, scenario)


async def _nothing() -> None:
    return None


def test_each_replica_needs_a_server(model: Path) -> None:
    with pytest.raises(ValidationError, match="a router needs url"):
        SGLangConfig(router="http://127.0.0.1:1")
    here = replace(context("engine", model), replica=1, replicas=3)
    for keys in ({"url": "http://a", "router": "http://r"}, {"url": ("http://a", "http://b")}):
        with pytest.raises(PreflightError, match="3 replicas: each replica controls one server"):
            asyncio.run(SGLangEngine(SGLangConfig(**keys), here).start(model))
