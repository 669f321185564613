"""The HTTP server that agents call; the key that a request brings says of which episode it is."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any, Self

import msgspec
import xxhash
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from astraflow_core.protocols.workflow import PolicyEngine
from astraflow_gateway.dialects import chat_completions, token_ids
from astraflow_gateway.episode import Episode
from astraflow_gateway.requests import BadRequest, ModelAnswer, ModelRequest
from astraflow_wire.http.server import Server, create_app

MAX_BODY_BYTES = 8 << 20
KEEP_ALIVE_S = 10.0

Chunks = Callable[[ModelAnswer], Iterable[Mapping[str, Any]]]


class Gateway:
    """Serves the open episodes in the running event loop, from :meth:`start` to :meth:`stop` or within
    ``async with``. Only loopback: the keys travel in clear text."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._episodes: dict[str, Episode] = {}
        app = create_app("gateway", "", MAX_BODY_BYTES)
        self._add_routes(app)
        self._server = Server(app, host, port)
        self.url = self._server.url

    async def start(self) -> None:
        """Begin to serve."""
        await self._server.start()

    async def stop(self) -> None:
        """End every episode and close."""
        for key in list(self._episodes):
            await self.end(key)
        await self._server.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    def begin(self, episode: Episode) -> str:
        """Open ``episode`` for requests; its API key."""
        key = f"ep-{secrets.token_urlsafe(24)}"
        self._episodes[key] = episode
        return key

    async def end(self, key: str) -> None:
        """Refuse further requests of the episode, and end what is sampled for it."""
        if episode := self._episodes.pop(key, None):
            await episode.close()

    def _episode(self, request: Request) -> Episode:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        key = request.path_params.get("episode") or given or request.headers.get("x-api-key", "")
        if episode := self._episodes.get(key):
            return episode
        raise BadRequest(
            "the API key is not that of an open episode; a key ends with its episode",
            status=401,
            kind="invalid_api_key",
        )

    def _add_routes(self, app: FastAPI) -> None:
        @app.exception_handler(BadRequest)
        async def refused(request: Request, error: BadRequest) -> Response:
            return JSONResponse(chat_completions.error(error), error.status)

        @app.exception_handler(404)
        @app.exception_handler(405)
        async def no_such_route(request: Request, error: Any) -> Response:
            what = f"{error.detail}: {request.method} {request.url.path[:200]}"
            told = BadRequest(what, error.status_code, "not_found")
            return JSONResponse(chat_completions.error(told), error.status_code, error.headers)

        @app.get("/v1/models")
        @app.get("/e/{episode}/v1/models")
        async def models(request: Request) -> Response:
            engines = self._episode(request).engines
            data = [_model(name, engine) for name, engine in engines.items()]
            return JSONResponse({"object": "list", "data": data})

        @app.get("/v1/models/{model}")
        @app.get("/e/{episode}/v1/models/{model}")
        async def model_of(request: Request, model: str) -> Response:
            episode = self._episode(request)
            name = episode.policy_of(model)
            return JSONResponse(_model(name, episode.engines[name]))

        @app.post("/v1/chat/completions")
        @app.post("/e/{episode}/v1/chat/completions")
        async def chat(request: Request) -> Response:
            episode, body = self._episode(request), await request.body()
            with _noted(episode):
                asked, wanted = chat_completions.read(body)
            answering = asyncio.ensure_future(_answer(episode, wanted, request, body))
            answering.add_done_callback(lambda done: done.cancelled() or done.exception())
            id = f"chatcmpl-{secrets.token_hex(12)}"

            def tokenizer(answer: ModelAnswer) -> Any:
                return episode.engines[answer.policy].tokenizer

            if not asked.stream:
                answer = await answering
                return JSONResponse(chat_completions.whole(asked, answer, tokenizer(answer), id))
            return await _streamed(
                answering,
                lambda answer: chat_completions.chunks(asked, answer, tokenizer(answer), id),
            )

        @app.post("/inference/v1/generate")
        @app.post("/e/{episode}/inference/v1/generate")
        async def generate(request: Request) -> Response:
            episode, body = self._episode(request), await request.body()
            with _noted(episode):
                _, wanted = token_ids.read(body)
            answer = await _answer(episode, wanted, request, body)
            return JSONResponse(token_ids.whole(answer, f"gen-{secrets.token_hex(12)}"))


def _model(name: str, engine: PolicyEngine) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "astraflow",
        "max_model_len": engine.context_length,
    }


@contextlib.contextmanager
def _noted(episode: Episode) -> Iterator[None]:
    """The episode knows what its agent was told."""
    try:
        yield
    except BadRequest as error:
        episode.refusal = error.message
        raise


async def _answer(
    episode: Episode, wanted: ModelRequest, request: Request, body: bytes
) -> ModelAnswer:
    """The answer; a request that says that it comes again gets the recorded one."""
    named = request.headers.get("idempotency-key", "")
    retries = request.headers.get("x-stainless-retry-count", "0")
    digest = xxhash.xxh3_128_hexdigest(body)
    again = bool(named) or retries.strip("0 ") != ""
    try:
        return await episode.answer(wanted, f"{request.url.path} {named} {digest}", again)
    except BadRequest:
        raise
    except Exception as error:
        raise BadRequest(
            f"the engine could not answer: {error}", status=503, kind="engine_failed"
        ) from error


async def _streamed(answering: asyncio.Future[ModelAnswer], chunks: Chunks) -> Response:
    """Server-sent events. What is refused within ``KEEP_ALIVE_S`` is an ordinary response; after that, comments keep
    the connection busy until the answer is there."""
    await asyncio.wait({answering}, timeout=KEEP_ALIVE_S)
    if answering.done():
        answering.result()

    async def events() -> AsyncIterator[bytes]:
        while not answering.done():
            yield b": keep-alive\n\n"
            await asyncio.wait({answering}, timeout=KEEP_ALIVE_S)
        try:
            for chunk in chunks(answering.result()):
                yield b"data: " + msgspec.json.encode(chunk) + b"\n\n"
        except BadRequest as error:
            yield b"data: " + msgspec.json.encode(chat_completions.error(error)) + b"\n\n"
        yield b"data: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")
