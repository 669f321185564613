"""Training runs and what was saved of them."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import FileResponse

from astraflow_contrib_tinker.routes.bodies import Body, TimeToLive, read
from astraflow_contrib_tinker.service import Service
from astraflow_contrib_tinker.work.access import CURRENT, visible
from astraflow_contrib_tinker.work.links import SIGNED
from astraflow_contrib_tinker.work.store import KINDS, Kind, Saved
from astraflow_contrib_tinker.work.training import TrainedModel
from astraflow_core.errors import Refused

_TYPES: dict[Kind, str] = {
    "weights": "training",
    "sampler_weights": "sampler",
    "external_weights": "external",
}
Limit = Annotated[int, Query(ge=1, le=1000)]
Offset = Annotated[int, Query(ge=0)]


class _WeightsInfo(Body):
    tinker_path: str


class _Expire(Body):
    ttl_seconds: TimeToLive


def run_routes(service: Service) -> APIRouter:
    """Endpoints of training runs."""
    routes = APIRouter()

    def models() -> list[TrainedModel]:
        sessions = [each for each in service.sessions.values() if visible(each.key)]
        found = [model for session in sessions for model in session.models.values()]
        return sorted(found, key=lambda model: -model.last_request)

    @routes.get("/training_runs")
    async def runs(limit: Limit = 20, offset: Offset = 0) -> dict[str, Any]:
        found = models()
        return {
            "training_runs": [_run(service, model) for model in found[offset : offset + limit]],
            "cursor": {"offset": offset, "limit": limit, "total_count": len(found)},
        }

    @routes.get("/training_runs/{id}")
    async def run(id: str) -> dict[str, Any]:
        return _run(service, service.model(id))

    @routes.delete("/training_runs/{id}")
    async def remove(id: str) -> dict[str, Any]:
        """Not of Tinker, whose models end with their session."""
        with service.audit.noted("DELETE training_runs", model=id):
            await service.remove_model(id)
        return {}

    @routes.get("/training_runs/{id}/checkpoints")
    async def checkpoints(id: str) -> dict[str, Any]:
        return {"checkpoints": [_checkpoint(saved) for saved in service.store.of_model(id)]}

    @routes.get("/checkpoints")
    async def all_checkpoints(limit: Limit = 100, offset: Offset = 0) -> dict[str, Any]:
        found = [saved for model in models() for saved in service.store.of_model(model.id)]
        return {
            "checkpoints": [_checkpoint(saved) for saved in found[offset : offset + limit]],
            "cursor": {"offset": offset, "limit": limit, "total_count": len(found)},
        }

    @routes.delete("/training_runs/{id}/checkpoints/{kind}/{name}")
    async def delete(id: str, kind: str, name: str) -> dict[str, Any]:
        with service.audit.noted("DELETE checkpoints", model=id, kind=kind, name=name):
            service.store.remove(id, _kind(kind), name)
        return {}

    @routes.put("/training_runs/{id}/checkpoints/{kind}/{name}/ttl")
    async def expire(id: str, kind: str, name: str, request: Request) -> dict[str, Any]:
        seconds = (await read(request, _Expire)).ttl_seconds
        with service.audit.noted("PUT ttl", model=id, kind=kind, name=name, ttl_seconds=seconds):
            service.store.expire(id, _kind(kind), name, seconds)
        return {}

    @routes.get("/training_runs/{id}/checkpoints/external_weights/{name}/external_weights_urls")
    async def links(id: str, name: str, request: Request) -> dict[str, Any]:
        base = (
            f"{str(request.base_url).rstrip('/')}{request.url.path.partition('/training_runs/')[0]}"
        )
        urls, until = service.links.of(id, name, base)
        return {"urls": urls, "expires": _time(until)}

    @routes.get(f"/{SIGNED}/{{id}}/{{name}}/{{file}}")
    async def exported(id: str, name: str, file: str, until: int, signature: str) -> FileResponse:
        path = service.links.file(id, name, file, until, signature)
        return FileResponse(path, media_type="application/octet-stream")

    @routes.get("/usage")
    async def usage() -> dict[str, Any]:
        key = CURRENT.get()
        return {
            "key": key,
            "requests": service.promises.waiting_of(key),
            "models": len(service.models_of(key)),
            "disk_bytes": await asyncio.to_thread(service.store.used_by, key),
            **asdict(service.usage[key]),
        }

    @routes.post("/weights_info")
    async def weights_info(request: Request) -> dict[str, Any]:
        path = (await read(request, _WeightsInfo)).tinker_path
        kinds = [kind for kind in KINDS if f"/{kind}/" in path]
        saved, _ = service.store.find(path, kinds[0] if kinds else "weights")
        told = {"base_model": saved.base_model, "is_lora": saved.lora_rank > 0}
        if saved.lora_rank:
            told |= {
                "lora_rank": saved.lora_rank,
                "train_unembed": False,
                "train_mlp": True,
                "train_attn": True,
            }
        return told

    return routes


def _kind(kind: str) -> Kind:
    for known in KINDS:
        if kind == known:
            return known
    raise Refused(400, f"{kind[:40]!r}: expected one of {', '.join(KINDS)}")


def _run(service: Service, model: TrainedModel) -> dict[str, Any]:
    saved = service.store.of_model(model.id)
    newest = {kind: [s for s in saved if s.kind == kind] for kind in ("weights", "sampler_weights")}
    return {
        "training_run_id": model.id,
        "base_model": model.base.name,
        "model_owner": "local",
        "is_lora": model.lora_rank > 0,
        "lora_rank": model.lora_rank or None,
        "last_request_time": _time(model.last_request),
        "last_checkpoint": _last(newest["weights"]),
        "last_sampler_checkpoint": _last(newest["sampler_weights"]),
        "user_metadata": model.metadata,
    }


def _last(saved: list[Saved]) -> dict[str, Any] | None:
    return _checkpoint(saved[-1]) if saved else None


def _checkpoint(saved: Saved) -> dict[str, Any]:
    return {
        "checkpoint_id": f"{saved.kind}/{saved.name}",
        "checkpoint_type": _TYPES[saved.kind],
        "time": _time(saved.time),
        "expires_at": _time(saved.expires) if saved.expires else None,
        "tinker_path": saved.path,
        "size_bytes": saved.size,
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
