"""How the server is reached: by the standard streams of its process, or over HTTP."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings

from astraflow_core.errors import UserError
from astraflow_runtime.cli.output import print_line
from astraflow_runtime.cli.running.listening import kept_token, listen_address, listen_tls
from astraflow_wire.http.server import Server, create_app

PATH = "/mcp"
MOST_BODY_BYTES = 1 << 20
MOST_SESSIONS = 32
IDLE_S = 1800.0
_INTERRUPTED = 130


def serve_stdio(server: MCPServer[Any]) -> int:
    """Serve until the client closes the input. Ctrl-C ends the process at once: a thread that waits for input could
    not be ended otherwise, and nothing here has to be written."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(_INTERRUPTED))
    if sys.stdin is not None and sys.stdin.isatty():
        print_line(
            "astraflow mcp speaks JSON-RPC on its standard streams; an agent's client starts it (docs/operate-with-an-agent.md). "
            "Ctrl-C ends it.",
            sys.stderr,
        )
    asyncio.run(server.run_stdio_async())
    return 0


def serve_http(
    server: MCPServer[Any],
    place: str,
    token_file: Path | None,
    certificate: Path | None,
    private_key: Path | None,
) -> int:
    """Serve streamable HTTP until Ctrl-C, for clients that send the token in the file."""
    host, port = listen_address(place, "--http", "127.0.0.1:8791")
    if token_file is None:
        raise UserError(
            "--http needs --token-file FILE, the bearer token that clients send; a file that does not exist is written"
        )
    tls = listen_tls(host, "--http", "token", certificate, private_key)
    token = kept_token(token_file)
    names = {host, "127.0.0.1", "localhost", "::1", socket.gethostname(), socket.getfqdn()}
    shown = sorted(f"[{name}]" if ":" in name else name for name in names)
    app = create_app("mcp", token, MOST_BODY_BYTES)
    app.mount(
        "/",
        server.streamable_http_app(
            streamable_http_path=PATH,
            max_request_body_size=MOST_BODY_BYTES,
            session_idle_timeout=IDLE_S,
            max_sessions=MOST_SESSIONS,
            transport_security=TransportSecuritySettings(
                allowed_hosts=[host for name in shown for host in (name, f"{name}:*")],
                allowed_origins=[],
            ),
            host=host,
        ),
    )

    async def serve() -> None:
        async with (
            server.session_manager.run(),
            Server(app, host, port, tls=tls, own_tls=True) as serving,
        ):
            loop, stopped = asyncio.get_running_loop(), asyncio.Event()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, stopped.set)
            print_line(f"MCP at {serving.url}{PATH}; clients send the token in {token_file}")
            await stopped.wait()

    asyncio.run(serve())
    return 0
