"""What every request to the pages must show, and the headers of every answer."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any
from urllib.parse import urlsplit

from fastapi import Request
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.datastructures import MutableHeaders

from astraflow_core.errors import Refused
from astraflow_wire.http.auth import is_loopback
from astraflow_wire.http.browser_sessions import LOGIN, PREFIX, BrowserSession, BrowserSessions
from astraflow_wire.http.server import Receive, Scope, Send

ACTION_HEADER = "x-astraflow-action"
"""A header of every action: a form of another page cannot send it."""
MAX_BODY_BYTES = 1 << 16
EXPIRED = "the login has expired, or there was none: open the link that `astraflow ui` prints (press Enter there for another one)"
HEADERS = {
    "content-security-policy": "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class PagesGuard:
    """ASGI middleware of a separate server: only those that are logged in, only by the names of this server (an
    address that a foreign name was pointed at is refused), and nothing that a page of another origin asks for."""

    def __init__(self, app: Any, sessions: BrowserSessions, hosts: frozenset[str]) -> None:
        self.app, self.sessions, self.hosts = app, sessions, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry point."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        refusal = self._refusal(request)
        if refusal is not None:
            await refusal(scope, receive, send)
            return

        async def kept(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(raw=message["headers"]).update(HEADERS)
            await send(message)

        await self.app(scope, receive, kept)

    def _refusal(self, request: Request) -> Response | None:
        host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
        if not (is_loopback(host) or host in self.hosts):
            return _refused(403, f"this server is not called {host[:200]!r}")
        path = request.url.path
        if path in ("/", PREFIX.rstrip("/")) and request.method in ("GET", "HEAD"):
            return RedirectResponse(PREFIX, 307, headers=HEADERS)
        query, cookies = request.scope["query_string"], request.headers.get("cookie")
        encoded = None if cookies is None else cookies.encode("latin-1")
        if self.sessions.admits(request.method, path, query, encoded):
            return None
        if "text/html" in request.headers.get("accept", ""):
            return PlainTextResponse(f"{EXPIRED}\n", 401, headers=HEADERS)
        return _refused(401, EXPIRED)


def _refused(status: int, reason: str) -> Response:
    return JSONResponse({"error": reason}, status, headers=HEADERS)


def own_origin(request: Request) -> None:
    """``Refused`` (403) for what a page of another origin asks for; a browser says so in ``Origin`` or
    ``Sec-Fetch-Site``."""
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
    own = f"{request.url.scheme}://{request.headers.get('host', '')}"
    if origin not in (None, own) or site not in (None, "same-origin", "none"):
        raise Refused(403, "requests from pages of another origin are refused")


def logged_in(request: Request, sessions: BrowserSessions, token: str) -> BrowserSession:
    """The login of a request; a token of the run or of an operator may do everything, one of a viewer may look.
    ``Refused`` (401) without one."""
    session = sessions.session(request.headers.get("cookie"))
    grant = request.scope.get("grant")
    if session is None and token and grant is not None:
        looks = grant.role == "viewer"
        session = BrowserSession("read" if looks else "full", float("inf"), "token")
    if session is None:
        raise Refused(401, EXPIRED)
    return session


def may_act(request: Request, session: BrowserSession) -> None:
    """``Refused`` (403) for an action that a page of ours did not ask for, or that the login does not include."""
    if session.scope != "full":
        raise Refused(
            403, "this login may only look; open a link of `astraflow ui` without --read-only"
        )
    if request.headers.get(ACTION_HEADER) != "1":
        raise Refused(403, f"an action needs the header {ACTION_HEADER}: 1")
    if session.name != "token" and request.headers.get("origin") is None:
        raise Refused(403, "an action needs the header Origin, which every browser sends")


async def body_of(request: Request) -> bytes:
    """The body, bounded; ``Refused`` (413) if it is larger."""
    received = b""
    async for piece in request.stream():
        received += piece
        if len(received) > MAX_BODY_BYTES:
            raise Refused(413, f"the body is over {MAX_BODY_BYTES} bytes")
    return received


def login(request: Request, sessions: BrowserSessions, key: str) -> Response:
    """Set the cookie for a link that was not used before, and go to the pages."""
    value = sessions.redeem(key)
    if value is None:
        return PlainTextResponse(
            f"this link was used or is too old; {EXPIRED}\n", 401, headers=HEADERS
        )
    answer = RedirectResponse(PREFIX, 303, headers=HEADERS)
    answer.set_cookie(
        sessions.cookie,
        value,
        path=PREFIX,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return answer


__all__ = ["LOGIN", "PagesGuard", "body_of", "logged_in", "login", "may_act", "own_origin"]
