"""Where rollout services of the public protocol register: the routes that they call of its dataflow."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Annotated, Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from astraflow_contrib_compat.bodies import read_json
from astraflow_contrib_compat.raas.session import ForeignRaas, ForeignRun
from astraflow_core.errors import Refused
from astraflow_wire.http.access import is_name
from astraflow_wire.http.auth import authorized
from astraflow_wire.http.server import create_app

log = logging.getLogger("astraflow.compat")
MOST_BODY = 1 << 16
Scope = MutableMapping[str, Any]


class RegisterForeign(BaseModel):
    """Body of ``/register_raas``."""

    uid: Annotated[str, Field(max_length=100)]
    raas_url: Annotated[str, Field(max_length=2048)]
    gpu_count: Annotated[int, Field(ge=0, le=1 << 20)] = 0


class DeregisterForeign(BaseModel):
    """Body of ``/deregister_raas``."""

    uid: Annotated[str, Field(max_length=100)]
    shutdown: bool = False


class PathKeyGuard:
    """ASGI middleware: lets requests through that have the key, as a bearer or as the first part of the path, for programs
    that send no header; that part is taken away."""

    def __init__(self, app: Any, key: str) -> None:
        self._app, self._key = app, key

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """ASGI entry point."""
        if scope["type"] == "http":
            first, _, rest = scope["path"].removeprefix("/").partition("/")
            if hmac.compare_digest(first.encode("utf-8", "replace"), self._key.encode()):
                scope = {**scope, "path": f"/{rest}", "raw_path": f"/{rest}".encode()}
            elif not authorized(dict(scope["headers"]).get(b"authorization"), self._key):
                told = "this request needs the key in key_file: as a bearer token, or as http://HOST:PORT/KEY"
                await JSONResponse({"error": told}, status_code=401)(scope, receive, send)
                return
        await self._app(scope, receive, send)


class ForeignPool:
    """The sessions of the RaaS that have registered. ``ended`` is set when the run has ended."""

    def __init__(self, run: ForeignRun) -> None:
        self._run = run
        self._sessions: dict[str, tuple[ForeignRaas, asyncio.Task[None]]] = {}
        self._registering = asyncio.Lock()
        self.ended = asyncio.Event()

    def __len__(self) -> int:
        return len(self._sessions)

    async def register(self, asked: RegisterForeign) -> None:
        """Begin a session, after the end of one of the same name."""
        if not is_name(asked.uid):
            raise Refused(
                400,
                f"uid {asked.uid!r}: up to 100 letters, digits, '_', '.' and '-', a letter or digit first",
            )
        async with self._registering:
            await self.deregister(asked.uid, "it has registered again")
            if self.ended.is_set():
                raise Refused(400, "the run has ended")
            if len(self._sessions) >= self._run.config.max_raas:
                raise Refused(400, f"there are {len(self._sessions)} RaaS, the limit (max_raas)")
            try:
                session = ForeignRaas(asked.uid, asked.raas_url, asked.gpu_count, self._run)
            except ValueError as error:
                raise Refused(400, str(error)) from error
            running = asyncio.create_task(session.run())
            self._sessions[asked.uid] = session, running
            running.add_done_callback(lambda ended: self._over(session, ended))

    async def deregister(self, uid: str, reason: str, shut_down: bool = False) -> bool:
        """End a session; whether there was one."""
        if uid not in self._sessions:
            return False
        session, running = self._sessions[uid]
        if shut_down:
            await session.shut_down()
        session.end(reason)
        await asyncio.wait({running})
        return True

    async def close(self) -> None:
        """End all sessions."""
        for uid in list(self._sessions):
            await self.deregister(uid, "the adapter was stopped")

    def instances(self) -> list[dict[str, Any]]:
        """The RaaS, as ``/raas_pool`` lists them, with the reason why one does not do its work."""
        return [
            {
                "uid": each.uid,
                "url": each.url,
                "version": min(each.serving.values(), default=0),
                "initialized": each.state == "ready",
                "failure_count": int(bool(each.problem)),
                "last_availability": each.available,
                "suspect": False,
                "gpu_count": each.gpu_count,
                "problem": each.problem,
            }
            for each, _ in self._sessions.values()
        ]

    def _over(self, session: ForeignRaas, ended: asyncio.Task[None]) -> None:
        self._sessions.pop(session.uid, None)
        if not ended.cancelled() and (error := ended.exception()) is not None:
            log.error("the RaaS %s is given up", session.uid, exc_info=error)
        if session.stopped:
            self.ended.set()


def compat_app(pool: ForeignPool, key: str) -> FastAPI:
    """The routes, for those who have the key."""
    app = create_app("public AstraFlow protocol", "", MOST_BODY)
    app.add_middleware(PathKeyGuard, key=key)

    async def register_raas(request: Request) -> dict[str, Any]:
        asked = await read_json(request, RegisterForeign)
        await pool.register(asked)
        return {"ok": True, "uid": asked.uid, "pool_size": len(pool)}

    async def deregister_raas(request: Request) -> dict[str, Any]:
        asked = await read_json(request, DeregisterForeign)
        if not await pool.deregister(asked.uid, "it has deregistered", asked.shutdown):
            raise Refused(400, f"there is no RaaS {asked.uid!r}")
        return {"ok": True, "uid": asked.uid, "pool_size": len(pool)}

    async def raas_pool() -> dict[str, Any]:
        instances = pool.instances()
        version = min((each["version"] for each in instances), default=0)
        return {"size": len(instances), "version": version, "instances": instances}

    async def status() -> dict[str, Any]:
        return {"status": "ready", "raas_pool": await raas_pool()}

    routes: list[tuple[str, str, Callable[..., Awaitable[dict[str, Any]]]]] = [
        ("POST", "/register_raas", register_raas),
        ("POST", "/deregister_raas", deregister_raas),
        ("GET", "/raas_pool", raas_pool),
        ("GET", "/status", status),
    ]
    for method, path, handler in routes:
        app.add_api_route(path, handler, methods=[method])
    return app
