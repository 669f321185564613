"""The server of the pages: a separate app behind AstraFlow's HTTP server."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable
from pathlib import Path

from fastapi import FastAPI

from astraflow_contrib_pages.guard import PagesGuard
from astraflow_contrib_pages.routes import PageRoutes
from astraflow_contrib_pages.runs_folder import RunsFolder
from astraflow_wire.http.browser_sessions import LOGIN, BrowserSessions, Scope
from astraflow_wire.http.listening import tls_context
from astraflow_wire.http.server import Server, create_app

_BODY_BYTES = 1 << 16
_ALL = ("0.0.0.0", "::")  # noqa: S104 - asked for, not bound


def pages_app(folder: RunsFolder, sessions: BrowserSessions, hosts: Iterable[str]) -> FastAPI:
    """The app. ``hosts``: the host names that it accepts, in addition to those of loopback."""
    app = create_app("pages", "", _BODY_BYTES)
    app.include_router(PageRoutes(folder, sessions).router)
    app.add_middleware(PagesGuard, sessions=sessions, hosts=frozenset(hosts))
    return app


def pages_server(
    app: FastAPI, bind: str, port: int, certificate: Path | None, private_key: Path | None
) -> Server:
    """The server, bound; beyond loopback with TLS only, since cookies and conversations would travel in clear text."""
    tls = _tls(bind, certificate, private_key)
    return Server(app, bind, port, own_keys=True, tls=tls, own_tls=True)


def _tls(bind: str, certificate: Path | None, private_key: Path | None) -> ssl.SSLContext | None:
    exposed = (
        f"--bind {bind} is reached by other hosts, and logins and conversations would travel in clear text: give "
        "--certificate and --private-key, or leave --bind out and forward the port (ssh -L)"
    )
    return tls_context(bind, certificate, private_key, exposed=exposed)


def names_of(bind: str) -> set[str]:
    """The names by which browsers reach ``bind``."""
    return {bind, socket.gethostname(), socket.getfqdn()}


def login_url(url: str, bind: str, sessions: BrowserSessions, scope: Scope) -> str:
    """A link that logs in, once."""
    if bind in _ALL:
        url = url.replace(f"[{bind}]" if ":" in bind else bind, socket.gethostname())
    return f"{url}{LOGIN}?key={sessions.login_key(scope)}"
