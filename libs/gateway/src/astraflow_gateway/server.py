"""The HTTP server that agents call; the key that a request brings says of which episode it is."""

from __future__ import annotations

import secrets
from typing import Any, Self

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from astraflow_gateway.dialects.anthropic.messages import Messages
from astraflow_gateway.dialects.dialect import Dialect, Model, Provider, Route
from astraflow_gateway.dialects.openai.chat_completions import ChatCompletions
from astraflow_gateway.dialects.openai.token_ids import TokenIds
from astraflow_gateway.dialects.responses.responses import Responses
from astraflow_gateway.episode import Episode
from astraflow_gateway.listening import Listening
from astraflow_gateway.requests import BadRequest
from astraflow_gateway.serving import OpenEpisode, no_such_episode
from astraflow_wire.http.server import Server, ServiceApp, create_app

MAX_BODY_BYTES = 8 << 20
DIALECTS: tuple[Dialect, ...] = (ChatCompletions(), Responses(), Messages(), TokenIds())


class Gateway:
    """Serves the open episodes in the running event loop, from :meth:`start` to :meth:`stop` or within
    ``async with``. ``url`` is where agents find it. Further routes may be added to ``app``."""

    def __init__(self, listening: Listening | None = None) -> None:
        listening = listening or Listening()
        self._open: dict[str, OpenEpisode] = {}
        self.app = app = create_app("gateway", "", MAX_BODY_BYTES, _too_large)
        self._add_routes(app)
        tls = listening.tls()
        self._server = Server(
            app, listening.bind, listening.port, own_keys=True, tls=tls, own_tls=True
        )
        self.url = listening.url(self._server.port)

    async def start(self) -> None:
        """Begin to serve."""
        await self._server.start()

    async def stop(self) -> None:
        """End every episode and close."""
        for key in list(self._open):
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
        self._open[key] = OpenEpisode(episode)
        return key

    async def end(self, key: str) -> None:
        """Refuse further requests of the episode, and end what is sampled for it."""
        if opened := self._open.pop(key, None):
            await opened.close()

    def _opened(self, request: Request) -> OpenEpisode:
        given = (
            request.path_params.get("episode", ""),
            request.headers.get("authorization", "").removeprefix("Bearer "),
            request.headers.get("x-api-key", ""),
        )
        for key in given:
            if opened := self._open.get(key):
                return opened
        raise no_such_episode()

    def _add_routes(self, app: ServiceApp) -> None:
        @app.exception_handler(BadRequest)
        async def refused(request: Request, error: BadRequest) -> Response:
            return JSONResponse(_provider(request).error(error), error.status)

        app.calls.errors = {BadRequest: refused, **app.calls.errors}

        @app.exception_handler(404)
        @app.exception_handler(405)
        async def no_such_route(request: Request, error: Any) -> Response:
            what = f"{error.detail}: {request.method} {request.url.path[:200]}"
            told = BadRequest(what, error.status_code, "not_found")
            return JSONResponse(_provider(request).error(told), error.status_code, error.headers)

        @app.get("/v1/models")
        @app.get("/e/{episode}/v1/models")
        async def models(request: Request) -> Response:
            engines = self._opened(request).episode.engines
            found = [Model(name, engine.context_length) for name, engine in engines.items()]
            return JSONResponse(_provider(request).models(found))

        @app.get("/v1/models/{model}")
        @app.get("/e/{episode}/v1/models/{model}")
        async def model_of(request: Request, model: str) -> Response:
            episode = self._opened(request).episode
            name = episode.policy_of(model)
            found = Model(name, episode.engines[name].context_length)
            return JSONResponse(_provider(request).model(found))

        for dialect in DIALECTS:
            self._add_dialect(app, dialect)

    def _add_dialect(self, app: ServiceApp, dialect: Dialect) -> None:
        async def answer(request: Request) -> Response:
            return await self._opened(request).answer(dialect, request)

        def further(route: Route) -> None:
            async def call(request: Request) -> Response:
                return await self._opened(request).call(route, request)

            _add(app, route.method, route.path, call)

        app.add_call(dialect.path, answer)
        app.add_route("/e/{episode}" + dialect.path, answer, methods=["POST"])
        for route in dialect.routes:
            further(route)


def _add(app: ServiceApp, method: str, path: str, endpoint: Any) -> None:
    """At its path, and below that of an episode, for clients that cannot set a key. A plain route: that of FastAPI would look for
    dependencies of ``endpoint`` in each request."""
    for prefix in ("", "/e/{episode}"):
        app.add_route(prefix + path, endpoint, methods=[method])


def _too_large(scope: Any, status: int, reason: str) -> dict[str, Any]:
    """The only thing that is refused before a route sees it."""
    told = BadRequest(reason, status, "request_too_large")
    return _provider(Request(scope)).error(told)


def _provider(request: Request) -> Provider:
    """The provider whose formats the client of a request expects."""
    path = request.url.path
    for dialect in DIALECTS:
        if dialect.path in path:
            return dialect.provider
    by_anthropic = "anthropic-version" in request.headers
    return Messages.provider if by_anthropic else ChatCompletions.provider
