"""Answers a request over HTTP, whatever its dialect: retries, streams, and how many are under way at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import msgspec
import xxhash
from fastapi import Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from astraflow_gateway.dialects.dialect import Dialect, Exchange, Route
from astraflow_gateway.episode import Episode
from astraflow_gateway.requests import BadRequest, ModelAnswer, ModelRequest
from astraflow_wire.http.calls import JSON, MessageResponse

KEEP_ALIVE_S = 10.0
MOST_AT_ONCE = 64
"""Requests of an episode that are read and answered at a time; further ones wait, and their bodies are not read."""


def no_such_episode() -> BadRequest:
    """The refusal of a key that is foreign, or whose episode has ended."""
    return BadRequest(
        "the API key does not belong to an open episode; a key expires with its episode",
        status=401,
        kind="invalid_api_key",
    )


@dataclass
class OpenEpisode:
    """An episode that takes requests, until it is closed."""

    episode: Episode
    closed: bool = False
    _room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MOST_AT_ONCE))

    async def close(self) -> None:
        """Refuse what waits, and end what is sampled."""
        self.closed = True
        await self.episode.close()

    async def answer(self, dialect: Dialect, request: Request) -> Response:
        """The response to a request for a model's reply."""
        await self._room.acquire()
        try:
            exchange, answering = await self._begin(dialect, request)
        except BaseException:
            self._room.release()
            raise
        answering.add_done_callback(self._answered)
        if exchange.stream:
            return await _streamed(dialect, exchange, answering)
        return MessageResponse(msgspec.json.encode(exchange.whole(await answering)), JSON)

    async def call(self, route: Route, request: Request) -> Response:
        """The response at a route at which nothing is sampled."""
        async with self._room:
            self._check()
            body = await request.body()
            with _recording_refusals(self.episode):
                return JSONResponse(route.answer(self.episode, body, request.path_params))

    async def _begin(
        self, dialect: Dialect, request: Request
    ) -> tuple[Exchange, asyncio.Future[ModelAnswer]]:
        self._check()
        body = await request.body()
        self._check()
        with _recording_refusals(self.episode):
            exchange = dialect.read(body, self.episode)
        answering = _answer(self.episode, exchange.wanted, dialect, request, body)
        return exchange, asyncio.ensure_future(answering)

    def _check(self) -> None:
        if self.closed:
            raise no_such_episode()

    def _answered(self, answering: asyncio.Future[ModelAnswer]) -> None:
        self._room.release()
        if not answering.cancelled():
            answering.exception()  # an agent that has gone away does not ask for it


@contextlib.contextmanager
def _recording_refusals(episode: Episode) -> Iterator[None]:
    """Record in the episode each refusal that its agent gets."""
    try:
        yield
    except BadRequest as error:
        episode.refusal = error.message
        raise


async def _answer(
    episode: Episode, wanted: ModelRequest, dialect: Dialect, request: Request, body: bytes
) -> ModelAnswer:
    """The answer; a request that says that it comes again gets the recorded one."""
    named = request.headers.get("idempotency-key", "")
    retries = request.headers.get("x-stainless-retry-count", "0")
    digest = xxhash.xxh3_128_hexdigest(body)
    again = bool(named) or retries.strip("0 ") != ""
    try:
        return await episode.answer(wanted, f"{dialect.path} {named} {digest}", again)
    except BadRequest:
        raise
    except Exception as error:
        raise BadRequest(
            f"the engine could not generate a reply: {error}", status=503, kind="engine_failed"
        ) from error


async def _streamed(
    dialect: Dialect, exchange: Exchange, answering: asyncio.Future[ModelAnswer]
) -> Response:
    """Server-sent events. What is refused within ``KEEP_ALIVE_S`` is an ordinary response; after that, comments keep
    the connection alive until the reply is ready."""
    await asyncio.wait({answering}, timeout=KEEP_ALIVE_S)
    if answering.done():
        answering.result()

    async def events() -> AsyncIterator[bytes]:
        while not answering.done():
            yield b": keep-alive\n\n"
            await asyncio.wait({answering}, timeout=KEEP_ALIVE_S)
        try:
            for each in exchange.events(answering.result()):
                yield each
        except BadRequest as error:
            yield dialect.failed(error)

    return StreamingResponse(events(), media_type="text/event-stream")
