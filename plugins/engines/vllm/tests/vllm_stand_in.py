"""A stand-in for a vLLM server, in this process: it serves the routes that the engine calls, as vLLM 0.32 does, samples
no real tokens, and fails as a test requires."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import web

from astraflow_core.types import GenerateRequest, Sampling
from astraflow_plugin_vllm.config import VllmConfig
from astraflow_plugin_vllm.engine import VllmEngine
from astraflow_testing.conformance.subject import context


class StandIn:
    """Counts calls; ``refuse`` maps a path to how often it answers 500, ``hang`` lets requests wait."""

    def __init__(self, folder: Path) -> None:
        self.url = f"unix:{folder / 'stand-in'}"
        self.calls: list[str] = []
        self.bodies: dict[str, list[Any]] = {}
        self.refuse: dict[str, int] = {}
        self.status = 500
        self.version = "0.32.0"
        self.healthy, self.hang, self.killed = True, False, 0
        self.updating = False
        self._open: dict[str, asyncio.Event] = {}

    async def start(self) -> None:
        pass

    async def why_gone(self) -> str | None:
        return None if self.healthy else "it was switched off"

    def kill(self) -> None:
        self.killed += 1
        for event in self._open.values():
            event.set()

    async def stop(self) -> None:
        pass

    async def answer(self, request: web.Request) -> web.Response:
        self.calls.append(request.path)
        if request.can_read_body:
            self.bodies.setdefault(request.path, []).append(await request.json())
        if not self.healthy:
            return web.Response(status=503)
        refused = self.refuse.get(request.path, 0) > 0
        if self._out_of_order(request.path, refused):
            return web.Response(status=500, text="a weight update is already active")
        if refused:
            self.refuse[request.path] -= 1
            return web.Response(status=self.status, text="a shape that does not fit")
        match request.path:
            case "/version":
                return web.json_response({"version": self.version})
            case "/openapi.json":
                return web.json_response({"paths": {"/pause": {}, "/resume": {}}})
            case "/v1/models":
                return web.json_response({"data": [{"id": "m", "max_model_len": 64}]})
            case "/metrics":
                return web.Response(text='vllm:generation_tokens_total{engine="0"} 7.0\n')
            case "/abort_requests":
                for name in self.bodies[request.path][-1]["request_ids"]:
                    if name in self._open:
                        self._open[name].set()
            case "/inference/v1/generate":
                return web.json_response(await self._generate())
        return web.json_response({})

    def _out_of_order(self, path: str, refused: bool) -> bool:
        """vLLM's worker forgets an update that fails in a chunk, not one that fails at its end."""
        if path == "/start_weight_update":
            if self.updating:
                return True
            self.updating = not refused
        elif (path == "/update_weights" and refused) or (
            path == "/finish_weight_update" and not refused
        ):
            self.updating = False
        return False

    async def _generate(self) -> dict[str, Any]:
        body = self.bodies["/inference/v1/generate"][-1]
        reason, count = "length", body["sampling_params"]["max_tokens"]
        if self.hang:
            event = self._open.setdefault(f"generate-tokens-{body['request_id']}", asyncio.Event())
            await event.wait()
            reason, count = "abort", 0
        return {
            "choices": [
                {
                    "token_ids": [2] * count,
                    "finish_reason": reason,
                    "logprobs": {"content": [{"logprob": -1.0}] * count},
                    "weight_versions": [{"version": "0", "start": 0, "end": count}],
                }
            ]
        }


def with_engine(
    scenario: Callable[[VllmEngine, Any], Coroutine[Any, Any, None]],
    tmp_path: Path,
    model: Path,
    kind: type[StandIn] = StandIn,
    **keys: Any,
) -> StandIn:
    """Run ``scenario`` with an engine on a stand-in."""
    stand_in = kind(tmp_path)

    @asynccontextmanager
    async def serving() -> AsyncIterator[None]:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", stand_in.answer)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        await web.UnixSite(runner, stand_in.url.removeprefix("unix:")).start()
        try:
            yield
        finally:
            await runner.cleanup()

    async def run() -> None:
        async with serving():
            engine = VllmEngine(VllmConfig(**keys), context("engine", tmp_path), stand_in)
            await engine.start(model)
            try:
                await scenario(engine, stand_in)
            finally:
                await engine.close()

    asyncio.run(run())
    return stand_in


def request(name: str = "r", tokens: int = 3, pinned: int | None = None) -> GenerateRequest:
    prompt = np.array([5, 9], dtype=np.int32)
    return GenerateRequest(name, prompt, Sampling(tokens), pinned_version=pinned)


async def underway(engine: VllmEngine, stand_in: StandIn, given: GenerateRequest) -> Any:
    """A request that hangs at the server."""
    stand_in.hang = True
    before = stand_in.calls.count("/inference/v1/generate")
    task = asyncio.ensure_future(engine.generate(given))
    while stand_in.calls.count("/inference/v1/generate") == before:
        await asyncio.sleep(0.005)
    return task
