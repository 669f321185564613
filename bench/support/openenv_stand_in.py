"""A server with OpenEnv's protocol in a thread of this process, so that its CPU time counts equally on both sides."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

from aiohttp import WSMsgType, web

STEPS = 8


def serve() -> str:
    """Start it; its URL. It ends with the process."""
    started: list[str] = []
    ready = threading.Event()

    async def run() -> None:
        app = web.Application()
        app.add_routes([web.get("/ws", _session)])
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        started.append(f"http://{host}:{port}")
        ready.set()
        await asyncio.Event().wait()

    threading.Thread(target=lambda: asyncio.run(run()), daemon=True).start()
    if not ready.wait(10):
        raise RuntimeError("the server did not start within 10 s")
    return started[0]


async def _session(request: web.Request) -> web.WebSocketResponse:
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    steps = 0
    async for message in socket:
        if message.type is not WSMsgType.TEXT:
            break
        told: dict[str, Any] = json.loads(message.data)
        if told["type"] == "close":
            break
        steps = steps + 1 if told["type"] == "step" else 0
        data = {"observation": {"text": "no"}, "reward": 0.0, "done": steps == STEPS}
        await socket.send_str(json.dumps({"type": "observation", "data": data}))
    return socket
