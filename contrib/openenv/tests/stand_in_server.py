"""A server with OpenEnv's protocol, written without OpenEnv: a number to guess, and sessions with the fault ``does``.

``python stand_in_server.py PORT [SESSIONS]``; port 0 takes a free one. The first line that it prints is its URL.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from typing import Any

from aiohttp import WSMsgType, web

SCHEMA = {
    "title": "GuessAction", "description": "One guess.\nA number.", "type": "object",
    "properties": {"message": {"type": "string"}, "metadata": {"type": "object"}}, "required": ["message"],
}  # fmt: skip
GUESS = {
    "name": "guess",
    "description": "Guess.",
    "inputSchema": {"type": "object", "properties": {"message": {"type": "string"}}},
}
RAW = {
    "nan": '{"type":"observation","data":{"observation":{"text":"x"},"reward":NaN,"done":false}}',
    "no json": "{",
    "a list": "[1]",
    "no data": '{"type":"observation"}',
    "huge": '{"type":"observation","data":{"observation":{"text":"'
    + "x" * (17 << 20)
    + '"},"reward":0,"done":false}}',
    "observation": '{"type":"observation","data":{"observation":[],"reward":0,"done":false}}',
    "reward": '{"type":"observation","data":{"observation":{"text":"x"},"reward":"much","done":false}}',
    "done": '{"type":"observation","data":{"observation":{"text":"x"},"reward":0,"done":null}}',
    "fields": '{"type":"observation","data":{"observation":{"words":"x"},"reward":0,"done":false}}',
}
open_sessions = 0


class Guessing:
    def reset(self, seed: int = 0, does: str = "", high: int = 9, index: int = 0, **_: Any) -> Any:
        seed += index
        self.number, self.does, self.tries = random.Random(seed).randint(1, high), does, 0
        if does == "over":
            return observed("", 0.0, True)
        return observed(f"1 to {high}", None, False)

    def step(self, data: dict[str, Any]) -> Any:
        if data.get("type") == "call_tool":
            data = data["arguments"]
        if not isinstance(data.get("message"), str):
            problem = {"loc": ["message"], "msg": "Field required"}
            return error("Invalid message", "VALIDATION_ERROR", errors=[problem])
        if self.does == "raises":
            return error("no more", "EXECUTION_ERROR")
        self.tries += 1
        right = data["message"].strip() == str(self.number)
        return observed(
            "yes" if right else "no", float(right), right or self.tries == 8, tries=self.tries
        )


def observed(text: str, reward: float | None, done: bool, **more: Any) -> Any:
    observation = {"text": text, "metadata": {"a": 1}, "nothing": None, **more}
    return {
        "type": "observation",
        "data": {"observation": observation, "reward": reward, "done": done},
    }


def error(message: str, code: str, **more: Any) -> Any:
    return {"type": "error", "data": {"message": message, "code": code, **more}}


async def session(request: web.Request) -> web.WebSocketResponse:
    global open_sessions
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    wanted = os.environ.get("STAND_IN_TOKEN")
    if open_sessions == request.app["most"] or (
        wanted and request.headers.get("Authorization") != f"Bearer {wanted}"
    ):
        code = "CAPACITY_REACHED" if not wanted else "SESSION_ERROR"
        await socket.send_json(error("no place", code))
        await socket.close()
        return socket
    open_sessions += 1
    guessing = Guessing()
    try:
        async for message in socket:
            if message.type is not WSMsgType.TEXT:
                break
            told = json.loads(message.data)
            if told["type"] == "close":
                break
            await answer(socket, guessing, told)
    finally:
        open_sessions -= 1
    return socket


async def answer(socket: web.WebSocketResponse, guessing: Guessing, told: Any) -> None:
    if told["type"] == "mcp":
        result = {"jsonrpc": "2.0", "id": 1, "result": {"tools": [GUESS]}}
        await socket.send_json({"type": "mcp", "data": result})
    elif told["type"] == "reset":
        await socket.send_json(guessing.reset(**told["data"]))
    elif guessing.does in RAW:
        await socket.send_str(RAW[guessing.does])
    elif guessing.does == "bytes":
        await socket.send_bytes(b"x")
    elif guessing.does == "closes":
        await socket.close()
    elif guessing.does == "dies":
        sys.stdout.write("the disk is on fire\n")
        sys.stdout.flush()
        os._exit(3)
    elif guessing.does == "hangs":
        await asyncio.sleep(60)
    else:
        await socket.send_json(guessing.step(told["data"]))


TASKS = {"train": 1200, "few": 3}
"""Split → how many tasks it has; of another one the server knows nothing."""


async def environments(_: web.Request) -> web.Response:
    return web.json_response(["guessing"])


async def num_tasks(request: web.Request) -> web.Response:
    split = (await request.json())["split"]
    if split == "none":
        return web.json_response({"detail": "num_tasks is not supported"}, status=501)
    return web.json_response({"num_tasks": TASKS.get(split, 0)})


async def task_range(request: web.Request) -> web.Response:
    asked = await request.json()
    tasks = [{"id": f"{asked['split']}-{at}"} for at in range(asked["start"], asked["stop"])]
    return web.json_response({"tasks": tasks})


async def main() -> None:
    app = web.Application()
    app["most"] = int(sys.argv[2]) if len(sys.argv) > 2 else 64

    async def health(_: web.Request) -> web.Response:
        return web.json_response({"status": "healthy"})

    async def schema(_: web.Request) -> web.Response:
        return web.json_response({"action": SCHEMA, "observation": {}, "state": {}})

    app.add_routes(
        [web.get("/health", health), web.get("/schema", schema), web.get("/ws", session)]
    )
    app.add_routes(
        [
            web.get("/list_environments", environments),
            web.post("/guessing/num_tasks", num_tasks),
            web.post("/guessing/task_range", task_range),
        ]
    )
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", int(sys.argv[1]))
    await site.start()
    host, port = runner.addresses[0][:2]
    sys.stdout.write(f"http://{host}:{port}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
