"""Plain requests to a stand-in, for the tests that show how it behaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import aiohttp
from sglang_stand_in import SGLangStandIn

UPDATE = "/update_weights_from_disk"


class Wire:
    """Plain requests to one stand-in."""

    def __init__(self, http: aiohttp.ClientSession, server: SGLangStandIn) -> None:
        self._http = http
        self.server = server

    async def post(self, path: str, body: Any = None, **query: Any) -> int:
        async with self._http.post(path, json=body or {}, params=query) as response:
            return response.status

    async def get(self, path: str) -> tuple[int, bytes]:
        async with self._http.get(path) as response:
            return response.status, await response.read()

    async def update(self, folder: Path, version: str, **more: Any) -> int:
        body = {"model_path": str(folder), "weight_version": version, "flush_cache": False, **more}
        return await self.post(UPDATE, body)

    async def generate(self, rid: str, tokens: int = 10_000, **more: Any) -> list[Any]:
        """The events of a stream."""
        events = []
        async with self._http.post("/generate", json=request(rid, tokens, **more)) as response:
            assert response.status == 200
            async for line in response.content:
                if line.startswith(b"data: {"):
                    events.append(json.loads(line[6:]))
        return events

    def launch(self, rid: str, tokens: int = 10_000) -> asyncio.Task[list[Any]]:
        return asyncio.create_task(self.generate(rid, tokens))

    async def underway(self, rid: str) -> asyncio.Task[list[Any]]:
        """A long request that has sampled something."""
        task = self.launch(rid)
        await until(
            lambda: (
                len(self.server.running[rid].entries) > 3 if rid in self.server.running else False
            )
        )
        return task

    async def entries(self, rid: str) -> int:
        """Tokens that the scheduler has processed; the round trip is a point between two of its passes."""
        await self.get("/server_info")
        return len(self.server.running[rid].entries)


def request(rid: str, tokens: int, **more: Any) -> dict[str, Any]:
    sampling = {"max_new_tokens": tokens, "temperature": 1.0, "ignore_eos": True}
    return {"input_ids": [5, 9], "rid": rid, "sampling_params": sampling, "stream": True, **more}


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.001)


def meta(events: list[Any]) -> Any:
    return events[-1]["meta_info"]


def run(server: SGLangStandIn, scenario: Callable[[Wire], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with aiohttp.ClientSession(server.url) as http, asyncio.timeout(15):
            await scenario(Wire(http, server))

    asyncio.run(main())
