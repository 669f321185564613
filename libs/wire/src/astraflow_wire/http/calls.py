"""Calls: ``POST`` requests of services to a fixed path, answered without the routing and the layers of the web framework,
which cost more CPU than what most calls do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import Request, Response
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

Handler = Callable[[Request], Awaitable[Response]]
AnswerToError = Callable[[Request, Any], Awaitable[Response]]

REPLY = "astraflow.reply"
"""Extension of our server: ``(media type, body) -> bool`` answers a request with 200, or says that it cannot."""
_MSGPACK = b"application/msgpack"
JSON = b"application/json"


class MessageResponse(Response):
    """A message, by default as msgpack."""

    def __init__(self, body: bytes, media: bytes = _MSGPACK) -> None:
        # What the constructor of a response would find out about it costs more than its encoding.
        self.body, self.status_code, self.background = body, 200, None
        self._media = media
        self.raw_headers = [
            (b"content-length", b"%d" % len(body)),
            (b"content-type", media),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry point."""
        at_once = scope.get("extensions", {}).get(REPLY)
        if at_once is None or not at_once(self._media, self.body):
            await super().__call__(scope, receive, send)


class CallRequest(Request):
    """A request whose body is read once, as a whole."""

    async def body(self) -> bytes:
        """The body; :class:`ClientDisconnect` if the caller has disconnected before its end."""
        parts: list[bytes] = []
        more = True
        while more:
            message = await self._receive()
            if message["type"] != "http.request":
                self._is_disconnected = True
                raise ClientDisconnect
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def is_disconnected(self) -> bool:
        """Whether the caller has disconnected, as far as is known now."""
        if not self._is_disconnected:
            # One step decides: it ends at once only if there is a message.
            receiving: Any = self._receive()
            try:
                receiving.send(None)
            except StopIteration as done:
                self._is_disconnected = done.value["type"] == "http.disconnect"
            else:
                receiving.close()
        return self._is_disconnected


class CallAnswers:
    """ASGI app that answers the calls of ``handlers``, path → function. ``errors``: type of an exception → what answers it;
    the most general one last, after whose answer it is raised again."""

    def __init__(self, errors: dict[type[Exception], AnswerToError]) -> None:
        self.handlers: dict[str, Handler] = {}
        self.errors = errors

    def has(self, scope: Scope) -> bool:
        """Whether a request is a call."""
        return (
            scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in self.handlers
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry point, for a request that is a call."""
        call = CallRequest(scope, receive)
        try:
            response = await self.handlers[scope["path"]](call)
        except Exception as error:
            kind = next(kind for kind in self.errors if isinstance(error, kind))
            await (await self.errors[kind](call, error))(scope, receive, send)
            if kind is Exception:
                raise  # the server logs it
            return
        await response(scope, receive, send)
