"""The minimal handler of a push: one ASGI function that reads the body, keeps it and appends
it to a file, as the journal of a dataflow does.

Restates no system: it is the floor that our server library sets (same uvicorn, no framework above it).
``python -m bench.baselines.bare_push FILE``.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import uvicorn

from bench.support.processes import announce

BODIES: list[bytes] = []
LOG = os.open(tempfile.gettempdir(), os.O_TMPFILE | os.O_WRONLY | os.O_APPEND)


async def app(scope: Any, receive: Any, send: Any) -> None:
    """``/clear`` forgets the bodies; any other path takes one in."""
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message["body"])
        more = message.get("more_body", False)
    if scope["path"] == "/clear":
        BODIES.clear()
    else:
        body = b"".join(parts)
        BODIES.append(body)
        os.write(LOG, body)
    answer = b"ok"
    headers = [(b"content-length", b"%d" % len(answer))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


async def serve(file: Path) -> None:
    """Listen, say where, serve until killed."""
    config = uvicorn.Config(
        app, port=0, log_level="warning", access_log=False, lifespan="off", timeout_keep_alive=120
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    announce(file, f"http://127.0.0.1:{port}")
    await task


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
