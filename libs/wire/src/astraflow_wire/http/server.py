"""The HTTP side of a service: FastAPI behind a token check and a body bound, uvicorn in the running loop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
import time
from collections.abc import (
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    MutableMapping,
    Sequence,
)
from typing import Any, Self, TypeVar

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from astraflow_core.errors import Refused, UserError, WireError
from astraflow_wire.http.access import Access, Grant
from astraflow_wire.http.auth import is_loopback
from astraflow_wire.http.browser_sessions import BrowserSessions
from astraflow_wire.http.calls import (
    AnswerToError,
    CallAnswers,
    Handler,
    MessageResponse,
)
from astraflow_wire.http.connection_limits import ConnectionLimits, Limits
from astraflow_wire.http.listener import LimitedProtocol, Listener
from astraflow_wire.http.listening import cannot_listen
from astraflow_wire.http.tls import server_tls
from astraflow_wire.messages import Message, decode, encode

log = logging.getLogger(__name__)
T = TypeVar("T")
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
ErrorBody = Callable[[Scope, int, str], dict[str, Any]]
Rights = Callable[[Grant, str, str], bool]
"""Whether a grant includes a method and a path."""

STOP_DEADLINE_S = 5
BACKLOG = 2048
PIECE_BYTES = 1 << 18
MOST_DISCARDED, DISCARD_S = 64 << 20, 2.0
"""How much of a too large body is read, and for how long, before it is rejected: a client that
still writes when the connection closes never reads the error.
"""


class BodyTooLarge(Refused):
    """The request's body is over the bound."""

    def __init__(self, limit: int) -> None:
        super().__init__(413, f"the body is over {limit} bytes, the limit of this service")


def plain_error(scope: Scope, status: int, reason: str) -> dict[str, Any]:
    """The body of an error response of our services."""
    return {"error": reason}


def looks_only(grant: Grant, method: str, path: str) -> bool:
    """The rights of a service that says nothing else: an operator may do all, a viewer may read."""
    return grant.role == "operator" or (grant.role == "viewer" and method in ("GET", "HEAD"))


class Guard:
    """ASGI middleware: rejects a request without a valid token (401), with one whose rights do not include it (403), or with
    too large a body (413). Below the path of the pages a browser may use a login of ``sessions`` instead of a token.
    ``scope["grant"]`` is whose token it is."""

    def __init__(
        self,
        app: Any,
        access: Access,
        max_body_bytes: int,
        error_body: ErrorBody = plain_error,
        sessions: BrowserSessions | None = None,
        rights: Rights = looks_only,
    ) -> None:
        self.app, self.access, self.limit = app, access, max_body_bytes
        self.error_body, self.sessions, self.rights = error_body, sessions, rights

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry point."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        shown = headers.get(b"authorization")
        grant = scope["grant"] = self.access.grant(shown)
        method, path = scope["method"], scope["path"]
        if grant is None and not (
            self.sessions is not None
            and self.sessions.admits(method, path, scope["query_string"], headers.get(b"cookie"))
        ):
            await self._refuse(401, self.access.refusal(shown), scope, receive, send)
            return
        if grant is not None and grant.role != "run" and not self.rights(grant, method, path):
            reason = f"{grant} does not include {method} {path[:200]}; {self.access.roles}"
            await self._refuse(403, reason, scope, receive, send)
            return
        length = headers.get(b"content-length")
        if length is not None and (not length.isdigit() or int(length) > self.limit):
            error = BodyTooLarge(self.limit)
            # A client that waits for "100 Continue" has not begun to send the body.
            if b"expect" not in headers:
                await _discard(receive)
            await self._refuse(error.status, str(error), scope, receive, send)
            return
        if length is not None and b"transfer-encoding" not in headers:
            await self.app(scope, receive, send)  # the server reads that much and no more
            return
        received = 0

        async def bounded() -> MutableMapping[str, Any]:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self.limit:
                if message.get("more_body"):
                    await _discard(receive)
                raise BodyTooLarge(self.limit)
            return message

        await self.app(scope, bounded, send)

    async def _refuse(
        self, status: int, reason: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        body = self.error_body(scope, status, reason)
        await JSONResponse(body, status_code=status)(scope, receive, send)


async def _discard(receive: Receive) -> None:
    """Read the rest of a body, up to a bound."""
    size = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DISCARD_S):
            while size < MOST_DISCARDED:
                message = await receive()
                size += len(message.get("body", b""))
                if not message.get("more_body"):
                    return


class ServiceApp(FastAPI):
    """The app of a service: its calls go past the layers of the framework, which are for everything else."""

    calls: CallAnswers
    guarded_calls: Guard

    def add_call(self, path: str, handler: Handler) -> None:
        """Answer ``POST`` requests to ``path``."""
        self.router.add_route(path, handler, methods=["POST"])
        self.calls.handlers[path] = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry point."""
        if self.calls.has(scope):
            await self.guarded_calls(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def create_app(
    service: str,
    token: str,
    max_body_bytes: int,
    error_body: ErrorBody = plain_error,
    *,
    access: Access | None = None,
    rights: Rights = looks_only,
) -> ServiceApp:
    """An app whose routes all require ``token`` (if there is one), or one derived from it whose ``rights`` include the
    request; ``error_body(scope, status, reason)`` makes the body of an error before a route is called. ``access``: of a
    service that revokes tokens."""
    app = ServiceApp(title=f"AstraFlow {service}", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.token = token
    app.state.access = access or Access(token)
    app.state.browser_sessions = BrowserSessions(token) if token else None
    guard: dict[str, Any] = {
        "access": app.state.access,
        "max_body_bytes": max_body_bytes,
        "error_body": error_body,
        "sessions": app.state.browser_sessions,
        "rights": rights,
    }
    app.add_middleware(Guard, **guard)

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> Response:
        body = error_body(request.scope, error.status, str(error))
        return JSONResponse(body, status_code=error.status)

    @app.exception_handler(WireError)
    async def malformed(request: Request, error: WireError) -> Response:
        return JSONResponse({"error": str(error)}, status_code=400)

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, error: ClientDisconnect) -> Response:
        # The client is gone; without a handler this would log a traceback.
        log.debug("a caller disconnected during its %s %s", request.method, request.url.path[:200])
        return Response(status_code=400)

    @app.exception_handler(404)
    @app.exception_handler(405)
    async def no_such_route(request: Request, error: Any) -> Response:
        what = f"{error.detail}: {request.method} {request.url.path[:200]}"
        return JSONResponse({"error": what}, error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        # Starlette raises it again once this is sent, so the log has the traceback.
        what = f"the {service} failed: {type(error).__name__}: {error}"
        return JSONResponse({"error": what}, status_code=500)

    answers: dict[type[Exception], AnswerToError] = {
        Refused: refused,
        WireError: malformed,
        ClientDisconnect: gone,
        Exception: failed,
    }
    app.calls = CallAnswers(answers)
    app.guarded_calls = Guard(app.calls, **guard)
    return app


async def read_message(request: Request, expected: type[T]) -> T:
    """The request's body as ``expected``; a 400 says which field is wrong."""
    return decode(await request.body(), expected)


def reply(message: Message) -> Response:
    """A message as a msgpack response."""
    return MessageResponse(encode(message))


class FrameResponse(Response):
    """A frame, joined piece by piece as the socket accepts them: a piece is sent while it is in the
    processor's cache. The event loop copies what a socket does not accept at once, and moves it for
    every further send, so pieces are not large either.
    """

    media_type = "application/octet-stream"

    def __init__(self, parts: Sequence[bytes | memoryview]) -> None:
        self._parts, self._size = parts, sum(map(len, parts))
        super().__init__(headers={"content-length": str(self._size)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry point."""
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        left = self._size
        for piece in _pieces(self._parts, PIECE_BYTES):
            left -= len(piece)
            await send({"type": "http.response.body", "body": piece, "more_body": left > 0})


def _pieces(parts: Iterable[bytes | memoryview], most: int) -> Iterator[bytes | memoryview]:
    """The same bytes in pieces of up to ``most``: small parts joined, large ones cut."""
    small: list[bytes | memoryview] = []
    size = 0
    for part in parts:
        length = len(part)
        if size and size + length > most:
            yield b"".join(small)
            small, size = [], 0
        if length <= most:
            small.append(part)
            size += length
        else:
            view = memoryview(part)
            for start in range(0, len(view), most):
                yield view[start : start + most]
    if size:
        yield b"".join(small)


def frame(body: bytes | Sequence[bytes | memoryview]) -> Response:
    """A frame, or the parts of one, as a response."""
    return FrameResponse([body] if isinstance(body, bytes) else body)


def _bind(unbound: socket.socket, address: tuple[str, int], give_up_after_s: float) -> None:
    until = time.monotonic() + give_up_after_s
    while True:
        try:
            unbound.bind(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() >= until:
                raise
            time.sleep(0.05)
        else:
            return


class _Uvicorn(uvicorn.Server):
    """Serves on one socket, within limits."""

    def __init__(
        self,
        config: uvicorn.Config,
        access: Access,
        limits: Limits,
        name: str,
        tls: ssl.SSLContext | None,
        sessions: BrowserSessions | None,
    ) -> None:
        super().__init__(config)
        self.limits: ConnectionLimits[LimitedProtocol] = ConnectionLimits(limits, name)
        self._access, self._tls, self._sessions = access, tls, sessions

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept on the one socket."""
        await self.lifespan.startup()
        (listening,) = sockets or []
        listening.setblocking(False)
        listening.listen(BACKLOG)
        listener: Any = Listener(listening, self._protocol, self.limits, self._tls)
        self.servers = [listener]
        self.started = True

    def _protocol(self) -> LimitedProtocol:
        return LimitedProtocol(
            self.config, self.server_state, self.limits, self._access, self._sessions
        )


class Server:
    """An app served inside the running event loop, from :meth:`start` to :meth:`stop` or within ``async with``; the
    socket is bound in the constructor, which waits up to ``give_up_after_s`` for a port that is in use to become free.
    ``limits``: connections at a time, by default what :meth:`Limits.of_process` allows.
    ``own_keys``: each route checks its own key, so an app without a token may listen
    beyond loopback. ``tls`` encrypts connections, by default that of this process; with ``own_tls`` there is no default: browsers
    and agents have no certificate of a run.
    """

    def __init__(
        self,
        app: FastAPI,
        host: str,
        port: int,
        give_up_after_s: float = 0.0,
        limits: Limits | None = None,
        own_keys: bool = False,
        tls: ssl.SSLContext | None = None,
        own_tls: bool = False,
    ) -> None:
        tls = tls if own_tls else tls or server_tls(host)
        if not is_loopback(host) and not app.state.token and not own_keys:
            raise UserError(
                f"refusing to bind {host} without a token; only loopback may listen without a token"
            )
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # asyncio sends small answers at once (TCP_NODELAY) only if the protocol is named.
        self._socket = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            _bind(self._socket, (host, port), give_up_after_s)
        except OSError as error:
            self._socket.close()
            raise UserError(cannot_listen(host, port, error)) from error
        bound = self._socket.getsockname()
        shown = f"[{host}]" if family == socket.AF_INET6 else host
        self.port = int(bound[1])
        self.url = f"{'http' if tls is None else 'https'}://{shown}:{self.port}"
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_keep_alive=120,
            timeout_graceful_shutdown=STOP_DEADLINE_S,
        )
        self._server = _Uvicorn(
            config,
            app.state.access,
            limits or Limits.of_process(),
            self.url,
            tls,
            getattr(app.state, "browser_sessions", None),
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to serve; returns when requests are answered."""
        # Signals belong to the service, not to its HTTP server.
        self._server.capture_signals = contextlib.nullcontext  # type: ignore[assignment,method-assign]
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        while not self._server.started:
            if self._task.done():
                self._task.result()
                raise UserError(f"the server at {self.url} exited while starting")
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """Finish pending requests, then close."""
        if self._task is not None:
            self._server.should_exit = True
            await self._task
            self._task = None
        self._socket.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()
