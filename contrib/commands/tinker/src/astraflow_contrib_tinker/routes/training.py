"""Models: creation, gradients, steps, and what is saved and loaded."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import zstandard
from fastapi import APIRouter, Request
from pydantic import Field

from astraflow_contrib_tinker.routes.bodies import Body, as_texts, later, parsed, read
from astraflow_contrib_tinker.service import ClientSession, Service
from astraflow_contrib_tinker.wire.datums import GradientRequest, read_json, read_protobuf
from astraflow_contrib_tinker.wire.results import Result
from astraflow_contrib_tinker.work.training import TrainedModel
from astraflow_core.errors import Refused
from astraflow_core.protocols.trainer import AdamWStep

MOST_BODY_BYTES = 32 << 20
"""Of a request, also when it is decompressed."""
MOST_RANK = 1024
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Beta = Annotated[float, Field(ge=0, lt=1)]


class _Lora(Body):
    rank: Annotated[int, Field(ge=0, le=MOST_RANK)]
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] | None = None
    train_mlp: bool = True
    train_attn: bool = True


class _Optimizer(Body):
    type: str = "adamw"


class _CreateModel(Body):
    session_id: str
    model_seq_id: Annotated[int, Field(ge=0)]
    base_model: str
    lora_config: _Lora | None = None
    optimizer_config: _Optimizer = _Optimizer()
    user_metadata: dict[str, Any] | None = None


class _OfModel(Body):
    model_id: str


class _Adam(Body):
    learning_rate: NotNegative = 1e-4
    beta1: Beta = 0.9
    beta2: Beta = 0.95
    eps: Annotated[float, Field(gt=0)] = 1e-12
    weight_decay: NotNegative = 0.0
    grad_clip_norm: float = 0.0


class _OptimStep(Body):
    model_id: str
    seq_id: int | None = None
    adam_params: _Adam | None = None


class _Save(Body):
    model_id: str
    seq_id: int | None = None
    path: str | None = None
    overwrite: bool = False


class _SaveForSampler(Body):
    model_id: str
    seq_id: int | None = None
    path: str | None = None
    sampling_session_seq_id: int | None = None
    kind: Literal["snapshot", "inflight"] = "snapshot"


class _Load(Body):
    model_id: str | None = None
    seq_id: int | None = None
    session_id: str | None = None
    model_seq_id: int | None = None
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

    @routes.post("/forward_backward")
    async def forward_backward(request: Request) -> dict[str, Any]:
        return await _gradient(service, request, backward=True)

    @routes.post("/forward")
    async def forward(request: Request) -> dict[str, Any]:
        return await _gradient(service, request, backward=False)

    @routes.post("/optim_step")
    async def optim_step(request: Request) -> dict[str, Any]:
        body = await request.body()
        asked = parsed(body, _OptimStep)
        model, given = service.model(asked.model_id), asked.adam_params
        if given is None:
            raise Refused(400, "adam_params are missing: this server makes steps of AdamW")
        settings = AdamWStep(
            given.learning_rate,
            (given.beta1, given.beta2),
            given.eps,
            given.weight_decay,
            max(given.grad_clip_norm, 0.0),
        )
        return later(
            service.put(model, asked.seq_id, b"step" + body, lambda: service.step(model, settings))
        )

    @routes.post("/save_weights")
    async def save_weights(request: Request) -> dict[str, Any]:
        body = await request.body()
        asked = parsed(body, _Save)
        model = service.model(asked.model_id)

        async def work() -> Result:
            saved = await service.save(model, "weights", asked.path, asked.overwrite)
            return {"type": "save_weights", "path": saved.path}

        return later(service.put(model, asked.seq_id, b"save" + body, work))

    @routes.post("/save_weights_for_sampler")
    async def save_weights_for_sampler(request: Request) -> dict[str, Any]:
        body = await request.body()
        asked = parsed(body, _SaveForSampler)
        model, number = service.model(asked.model_id), asked.sampling_session_seq_id
        if asked.path is None and number is None:
            raise Refused(400, "give path, or sampling_session_seq_id for weights without a name")

        async def work() -> Result:
            told: dict[str, object] = {"type": "save_weights_for_sampler"}
            if number is None:
                saved = await service.save(model, "sampler_weights", asked.path, False)
                return {**told, "path": saved.path}
            sampler = await service.snapshot(model, number, asked.kind == "inflight")
            return {**told, "sampling_session_id": sampler.id}

        return later(service.put(model, asked.seq_id, b"sampler" + body, work))

    @routes.post("/load_weights")
    async def load_weights(request: Request) -> dict[str, Any]:
        body = await request.body()
        asked = parsed(body, _Load)
        saved, folder = service.store.find(asked.path, "weights")
        if asked.session_id is not None and asked.model_seq_id is not None:
            session = service.session(asked.session_id)
            told = (session, asked.model_seq_id, saved.lora_rank, None, asked.user_metadata)
            return _created(service, *told, load=(asked.path, asked.optimizer))
        model = service.model(asked.model_id or "")
        if saved.lora_rank != model.lora_rank:
            raise Refused(
                400,
                f"{asked.path} has adapters of rank {saved.lora_rank}, the model of rank {model.lora_rank}; 0 stands for "
                "all weights",
            )

        async def work() -> Result:
            await service.computing.do(model.load_state, folder, asked.optimizer)
            return {"type": "load_weights", "path": asked.path, "model_id": model.id}

        return later(service.put(model, asked.seq_id, b"load" + body, work))

    return routes


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
    model = service.create_model(session, number, rank, seed, as_texts(metadata))

    async def work() -> Result:
        try:
            await service.computing.do(model.open)
            if load is not None:
                _, folder = service.store.find(load[0], "weights")
                await service.computing.do(model.load_state, folder, load[1])
        except BaseException:
            session.models.pop(model.id, None)
            raise
        if load is None:
            return {"type": "create_model", "model_id": model.id}
        return {"type": "load_weights", "path": load[0], "model_id": model.id}

    if model.creation is None:
        model.creation = service.promised(session.id, work)
    return later(model.creation)


async def _gradient(service: Service, request: Request, backward: bool) -> dict[str, Any]:
    body = await request.body()
    if request.headers.get("content-encoding", "") == "zstd":
        body = decompressed(body)
    if "json" in request.headers.get("content-type", ""):
        asked: GradientRequest = read_json(body, backward)
    else:
        asked = read_protobuf(body)
    model: TrainedModel = service.model(asked.model_id)
    return later(
        service.put(model, asked.seq_id, b"gradient" + body, lambda: service.gradient(model, asked))
    )


def decompressed(body: bytes) -> bytes:
    """A body that was compressed with zstd; :class:`Refused` if it is none, or larger than the bound."""
    try:
        with zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(body) as reader:
            whole = reader.read(MOST_BODY_BYTES + 1)
    except zstandard.ZstdError as error:
        raise Refused(400, f"the body is no zstd: {error}") from error
    if len(whole) > MOST_BODY_BYTES:
        raise Refused(
            413, f"the body has more than {MOST_BODY_BYTES} bytes when it is decompressed"
        )
    return whole
