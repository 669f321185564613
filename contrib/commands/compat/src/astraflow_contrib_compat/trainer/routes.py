"""What a trainer of the public protocol calls: pickles both ways, errors as JSON."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from astraflow_contrib_compat.door import PathKeyGuard
from astraflow_contrib_compat.pickles.decoder import PickleDecoder
from astraflow_contrib_compat.pickles.encoder import encode_pickle
from astraflow_contrib_compat.trainer.session import ForeignTrainer
from astraflow_core.errors import AstraFlowError, Refused
from astraflow_wire.http.server import create_app

log = logging.getLogger("astraflow.compat")
MOST_BODY = 1 << 20


def trainer_app(
    trainers: Mapping[str, ForeignTrainer], key: str, decoder: PickleDecoder, tensors: bool
) -> FastAPI:
    """The routes, for those who have the key. ``trainers``: id of a model → the trainer of its policy."""
    app = create_app("dataflow of the public protocol", "", MOST_BODY)
    app.add_middleware(PathKeyGuard, key=key)

    def of(model_id: Any) -> ForeignTrainer:
        if model_id is None and len(trainers) == 1:
            return next(iter(trainers.values()))
        if model_id not in trainers:
            raise Refused(404, f"model_id {str(model_id)[:100]!r}: there are {', '.join(trainers)}")
        return trainers[model_id]

    async def ready(request: Request, asked: dict[str, Any]) -> Any:
        await of(asked.get("model_id")).ready(asked)
        return {"ok": True}

    async def batch(request: Request, asked: dict[str, Any]) -> Any:
        trainer = of(request.query_params.get("model_id"))
        told = request.query_params.get("version")
        if told is not None and not told.isdecimal():
            raise Refused(400, f"version {told[:40]!r} is not a whole number")
        while (found := await trainer.batch(None if told is None else int(told))) is None:
            if await request.is_disconnected():
                raise Refused(400, "the caller has disconnected")
        stats = {"buffer/consumed": float(len(found["rewards"]) * (trainer.updates + 1))}
        return {"batch": found, "buffer_stats": stats}

    async def notify_version(request: Request, asked: dict[str, Any]) -> Any:
        version = asked.get("version")
        if not isinstance(version, int) or isinstance(version, bool):
            raise Refused(400, "version must be a whole number")
        return await of(asked.get("model_id")).notify(version)

    async def save_buffer(request: Request, asked: dict[str, Any]) -> Any:
        return {"ok": True}  # the journal of our dataflow has it already

    async def shutdown(request: Request, asked: dict[str, Any]) -> Any:
        await next(iter(trainers.values())).stop_run()
        return {"ok": True}

    async def status() -> dict[str, Any]:
        version = min(each.version for each in trainers.values())
        agent = {
            "raas_ready": True,
            "trainer_ready": version >= 0,
            "started": version >= 0,
            "version": version,
        }
        return {"status": "ready", "eval_running": False, "agents": {"default": agent}}

    app.add_api_route("/status", status)
    for method, path, handler in (
        ("POST", "/ready", ready), ("GET", "/batch", batch), ("POST", "/notify_version", notify_version),
        ("POST", "/save_buffer", save_buffer), ("POST", "/shutdown", shutdown),
    ):  # fmt: skip
        app.add_api_route(path, _route(handler, decoder, tensors), methods=[method])
    return app


def _route(
    handler: Callable[[Request, dict[str, Any]], Awaitable[Any]],
    decoder: PickleDecoder,
    tensors: bool,
) -> Any:
    async def call(request: Request) -> Response:
        try:
            body = await request.body()
            asked = await decoder.decode(body) if body else {}
            if not isinstance(asked, dict):
                raise Refused(400, "the body must be a pickled dict")
            told = await handler(request, asked)
        except AstraFlowError as error:
            log.warning("%s was refused: %s", request.url.path, error)
            return JSONResponse({"error": str(error)}, getattr(error, "status", 500))
        encoded = await asyncio.to_thread(encode_pickle, told, tensors)
        return Response(encoded, media_type="application/octet-stream")

    return call
