"""A stand-in for a server: real HTTP, real sampling from a tiny model, one request at a step. It has the
routes and the fields that the engine uses, in the two dialects that it supports, and nothing else."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tokenizers import Tokenizer

from astraflow_core.types import Sampling
from astraflow_testing.tiny_decoder import TinyDecoder

PLAIN = {"model", "prompt", "max_tokens", "temperature", "top_p", "stream", "stop"}


class StandIn:
    """``plain``: text only, other fields than OpenAI's are refused; else as vLLM answers. ``trouble`` are
    statuses with which the next requests are answered; ``cut_after`` breaks connections after so many
    tokens; ``bodies`` are the requests that came, ``ended`` how many of them were left by their caller."""

    def __init__(self, model: Path, plain: bool = False) -> None:
        self.decoder = TinyDecoder(model)
        self.tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self.eos = self.decoder.config["eos_token_id"]
        self.plain = plain
        self.models = ["tiny"]
        self.lists = True
        self.trouble: list[int] = []
        self.retry_after = "0.01"
        self.cut_after: int | None = None
        self.delay_s = 0.0
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.ended = 0
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    async def _listen(self) -> None:
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._completions)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"

    async def _models(self, request: web.Request) -> web.Response:
        self.keys.append(request.headers.get("Authorization"))
        if not self.lists:
            return web.Response(status=500)
        extra = {} if self.plain else {"max_model_len": 2048}
        return web.json_response({"data": [{"id": name, **extra} for name in self.models]})

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        if self.trouble:
            status = self.trouble.pop(0)
            headers = {"Retry-After": self.retry_after}
            return web.Response(status=status, text="later, please", headers=headers)
        if body["model"] not in self.models:
            return web.Response(status=404, text="no such model")
        if self.plain:
            if unknown := body.keys() - PLAIN:
                return web.Response(status=422, text=f"unexpected fields {sorted(unknown)}")
            prompt = self.tokenizer.encode(body["prompt"], add_special_tokens=False).ids
        else:
            prompt = body["prompt"]
        if not body.get("stream"):
            return self._scores(prompt)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        try:
            await self._stream(response, body, prompt)
        except (ConnectionError, asyncio.CancelledError):
            self.ended += 1
            raise
        return response

    async def _stream(self, response: web.StreamResponse, body: Any, prompt: list[int]) -> None:
        sampling = Sampling(
            body["max_tokens"],
            temperature=body["temperature"],
            top_p=body.get("top_p", 1.0),
            top_k=body.get("top_k", 0),
            min_p=body.get("min_p", 0.0),
        )
        stops = {*body.get("stop_token_ids", ())}
        if not body.get("ignore_eos"):
            stops.add(self.eos)
        sequence = self.decoder.sequence(prompt)
        for count in range(1, body["max_tokens"] + 1):
            drawn = sequence.next(sampling)
            stopped = drawn.token in stops
            last = stopped or count == body["max_tokens"]
            choice: dict[str, Any] = {"index": 0, "finish_reason": None}
            if last:
                choice["finish_reason"] = "stop" if stopped else "length"
            choice["text"] = "" if stopped else self.tokenizer.decode([drawn.token])
            if not self.plain:
                choice["token_ids"] = [drawn.token]
                choice["logprobs"] = {"token_logprobs": [drawn.raw], "tokens": ["?"]}
            await response.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
            if count == self.cut_after:
                raise ConnectionResetError("as the test wants it")
            if last:
                break
            await asyncio.sleep(self.delay_s)
        await response.write(b"data: [DONE]\n\n")

    def _scores(self, prompt: list[int]) -> web.Response:
        scores = self.decoder.sequence(prompt).scores()
        given = [None, *({str(t): {"logprob": s, "rank": 1}} for t, s in zip(prompt[1:], scores, strict=True))]  # fmt: skip
        return web.json_response({"choices": [{"text": "x", "prompt_logprobs": given}]})


@pytest.fixture
def serving() -> Iterator[Callable[..., StandIn]]:
    """``serving(model)`` starts a stand-in, which ends with the test."""
    started: list[StandIn] = []

    def start(model: Path, plain: bool = False) -> StandIn:
        stand_in = StandIn(model, plain)
        stand_in.start()
        started.append(stand_in)
        return stand_in

    yield start
    for stand_in in started:
        stand_in.stop()
