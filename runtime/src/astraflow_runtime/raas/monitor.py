"""The small HTTP server of a RaaS, on loopback: health, status and metrics for those on its host."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse

from astraflow_wire.host.disk import replace_file
from astraflow_wire.http.server import create_app

MAX_BODY_BYTES = 1 << 20


def monitor_app(
    token: str,
    healthy: Callable[[], bool],
    status: Callable[[], dict[str, Any]],
    replicas: Callable[[], dict[str, list[dict[str, Any]]]],
    metrics: Callable[[], bytes],
    routers: Iterable[Any] = (),
) -> FastAPI:
    """The app; ``routers`` are those that plugins add."""
    app = create_app("raas", token, MAX_BODY_BYTES)

    @app.get("/v1/health")
    async def health() -> Response:
        ready = healthy()
        return JSONResponse(
            {"status": "ready" if ready else "starting", "replicas": replicas()}, status_code=200
        )

    @app.get("/v1/status")
    async def show() -> Response:
        return JSONResponse(status())

    @app.get("/metrics")
    async def prometheus() -> Response:
        return Response(metrics(), media_type="text/plain; version=0.0.4")

    for router in routers:
        app.include_router(router)
    return app


def write_address(path: Path, url: str, pid: int) -> None:
    """Write the address of the server, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, msgspec.json.encode({"url": url, "pid": pid}))
