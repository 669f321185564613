"""Sessions, what the server offers, and results."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from astraflow_contrib_tinker.routes.bodies import Body, as_texts, read
from astraflow_contrib_tinker.service import Service
from astraflow_contrib_tinker.wire.results import as_json, as_protobuf
from astraflow_contrib_tinker.work.futures import FailedRequest

PROTOBUF = "application/x-protobuf"
ADAPTERS = "adapters are on attention and MLP layers; train_unembed has no effect. rank=0 trains all weights."


class _Session(Body):
    user_metadata: dict[str, Any] | None = None


class _Heartbeat(Body):
    session_id: str


class _Retrieve(Body):
    request_id: str


def session_routes(service: Service) -> APIRouter:
    """Endpoints of sessions and results."""
    routes = APIRouter()

    @routes.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @routes.post("/client/config")
    async def config() -> dict[str, Any]:
        return {"proto_compress_fwdbwd": True, "sample_use_retrieve_futures": False}

    @routes.post("/client/dynamic_config")
    async def dynamic_config() -> dict[str, Any]:
        return {"sample_cancel_enabled": True}

    @routes.post("/cancel_future")
    async def cancel(request: Request) -> dict[str, Any]:
        service.promises.cancel((await read(request, _Retrieve)).request_id)
        return {}

    @routes.get("/get_server_capabilities")
    async def capabilities() -> dict[str, Any]:
        base = service.base
        offered = {
            "model_name": base.name,
            "max_context_length": base.config.positions,
            "trainable": True,
            "sampleable": True,
        }
        return {"supported_models": [offered]}

    @routes.post("/telemetry")
    async def telemetry(request: Request) -> dict[str, str]:
        async for _ in request.stream():
            pass
        return {"status": "accepted"}

    @routes.post("/create_session")
    async def create_session(request: Request) -> dict[str, Any]:
        asked = await read(request, _Session)
        session = service.begin(as_texts(asked.user_metadata))
        told = {"type": "create_session", "session_id": session.id}
        return (
            {**told, "warning_message": ADAPTERS} if "lora" in service.base.trainer_flags else told
        )

    @routes.post("/session_heartbeat")
    async def heartbeat(request: Request) -> dict[str, str]:
        service.session((await read(request, _Heartbeat)).session_id)
        return {"type": "session_heartbeat"}

    @routes.post("/sessions/{id}/finish")
    async def finish(id: str) -> dict[str, Any]:
        session = service.session(id)
        if session.models:
            service.audit.note("finish", {"session": id, "models": list(session.models)})
        service.end(session)
        return {}

    @routes.get("/sessions/{id}")
    async def session(id: str) -> dict[str, Any]:
        found = service.session(id)
        return {
            "training_run_ids": list(found.models),
            "sampler_ids": list(found.samplers),
            "user_metadata": found.metadata,
        }

    @routes.get("/samplers/{id}")
    async def sampler(id: str) -> dict[str, Any]:
        found = service.sampler(id)
        return {"sampler_id": id, "base_model": service.base.name, "model_path": found.model_path}

    @routes.post("/retrieve_future")
    async def retrieve(request: Request) -> Response:
        asked = await read(request, _Retrieve)
        promise = await service.promises.fetch(asked.request_id)
        outcome = promise.outcome
        if outcome is None:
            return JSONResponse(
                {
                    "type": "try_again",
                    "request_id": promise.id,
                    "queue_state": promise.queue_state,
                }
            )
        if isinstance(outcome, FailedRequest):
            return JSONResponse({"error": outcome.error, "category": outcome.category})
        if isinstance(outcome, dict):
            return JSONResponse(outcome)
        if PROTOBUF in request.headers.get("accept", ""):
            return Response(as_protobuf(outcome), media_type=PROTOBUF)
        return JSONResponse(as_json(outcome))

    return routes
