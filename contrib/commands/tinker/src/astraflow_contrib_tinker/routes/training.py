"""Models: creation, gradients, steps, and what is saved and loaded."""

from __future__ import annotations

from typing import Annotated, Any

import zstandard
from fastapi import APIRouter, Request
from pydantic import Field

from astraflow_contrib_tinker.routes.bodies import Body, as_texts, later, parsed, read
from astraflow_contrib_tinker.routes.numbered import (
    KINDS,
    NumberedRequest,
    RequestKind,
    put_numbered,
)
from astraflow_contrib_tinker.service import Service
from astraflow_contrib_tinker.sessions import ClientSession
from astraflow_core.errors import Refused

MOST_BODY_BYTES = 32 << 20
"""Of a request, also when it is decompressed."""
MOST_RANK = 1024


class _Lora(Body):
    rank: Annotated[int, Field(ge=0, le=MOST_RANK)]
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] | None = None
    train_mlp: bool = True
    train_attn: bool = True


class _Optimizer(Body):
    type: str = "adamw"


class _CreateModel(Body):
    session_id: str
    model_seq_id: Annotated[int, Field(ge=0, lt=1 << 63)]
    base_model: str
    lora_config: _Lora | None = None
    optimizer_config: _Optimizer = _Optimizer()
    user_metadata: dict[str, Any] | None = None


class _OfModel(Body):
    model_id: str


class _LoadAnew(Body):
    session_id: str | None = None
    model_seq_id: Annotated[int, Field(ge=0, lt=1 << 63)] | None = None
    path: str
    optimizer: bool
    user_metadata: dict[str, Any] | None = None


def training_routes(service: Service) -> APIRouter:
    """Endpoints of models."""
    routes = APIRouter()

    @routes.post("/create_model")
    async def create_model(request: Request) -> dict[str, Any]:
        asked = await read(request, _CreateModel)
        session = service.session(asked.session_id)
        if (wanted := asked.optimizer_config.type) != "adamw":
            raise Refused(400, f"the optimizer {wanted!r}: this server has adamw")
        rank = _rank(service, asked)
        seed = asked.lora_config.seed if asked.lora_config else None
        return _created(service, session, asked.model_seq_id, rank, seed, asked.user_metadata)

    @routes.post("/get_info")
    async def get_info(request: Request) -> dict[str, Any]:
        model, base = service.model((await read(request, _OfModel)).model_id), service.base
        return {
            "type": "get_info",
            "model_id": model.id,
            "model_name": base.name,
            "is_lora": model.lora_rank > 0,
            "lora_rank": model.lora_rank or None,
            "model_data": {"model_name": base.name, "tokenizer_id": str(base.folder)},
        }

    def numbered(kind: RequestKind) -> None:
        @routes.post(f"/{kind}", name=kind)
        async def post(request: Request) -> dict[str, Any]:
            return later(await put_numbered(service, await _numbered(kind, request)))

    for kind in KINDS:
        if kind != "load_weights":
            numbered(kind)

    @routes.post("/load_weights")
    async def load_weights(request: Request) -> dict[str, Any]:
        body = await request.body()
        asked = parsed(body, _LoadAnew)
        if asked.session_id is None or asked.model_seq_id is None:
            return later(await put_numbered(service, NumberedRequest("load_weights", body)))
        saved, _ = service.store.find(asked.path, "weights")
        session = service.session(asked.session_id)
        told = (session, asked.model_seq_id, saved.lora_rank, None, asked.user_metadata)
        return _created(service, *told, load=(asked.path, asked.optimizer))

    return routes


async def _numbered(kind: RequestKind, request: Request) -> NumberedRequest:
    body = await request.body()
    if request.headers.get("content-encoding", "") == "zstd":
        body = decompressed(body)
    gradient = kind in ("forward_backward", "forward")
    json = not gradient or "json" in request.headers.get("content-type", "")
    return NumberedRequest(kind, body, json)


def _rank(service: Service, asked: _CreateModel) -> int:
    if asked.base_model != service.base.name:
        raise Refused(
            400, f"the model {asked.base_model[:120]!r}: this server has {service.base.name!r}"
        )
    lora = asked.lora_config
    if lora is None or lora.rank == 0:
        return 0
    if "lora" not in service.base.trainer_flags:
        raise Refused(
            400,
            f"trainer {service.base.trainer[0]!r} trains no adapters; rank=0 trains all weights",
        )
    if not (lora.train_mlp and lora.train_attn):
        raise Refused(
            400,
            "train_mlp and train_attn: this server's adapters are on the layers that the trainer's key lora_targets names; "
            "leave both true",
        )
    return lora.rank


def _created(
    service: Service,
    session: ClientSession,
    number: int,
    rank: int,
    seed: int | None,
    metadata: dict[str, Any] | None,
    load: tuple[str, bool] | None = None,
) -> dict[str, Any]:
    """The promise of an open model; a repeated call gives the one of the first."""
    model = service.create_model(session, number, rank, seed, as_texts(metadata), load)
    if model.creation is None:
        state = None if load is None else service.store.find(load[0], "weights")[1]
        model.creation = service.opened(model, state, load is None or load[1], load)
    return later(model.creation)


def decompressed(body: bytes) -> bytes:
    """A body that was compressed with zstd; :class:`Refused` if it is none, or larger than the bound."""
    try:
        said = zstandard.get_frame_parameters(body).content_size
        with zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(body) as reader:
            whole = reader.read(MOST_BODY_BYTES + 1)
    except zstandard.ZstdError as error:
        raise Refused(400, f"the body is not valid zstd: {error}") from error
    if len(whole) > MOST_BODY_BYTES:
        raise Refused(
            413, f"the body has more than {MOST_BODY_BYTES} bytes when it is decompressed"
        )
    if said not in (zstandard.CONTENTSIZE_UNKNOWN, len(whole)):
        raise Refused(400, f"the body is cut off: it has {len(whole)} of {said} bytes")
    return whole
