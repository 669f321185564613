"""Requests of a model that are numbered. All but the number is read when it is a request's turn: a mistake fails that
request, and those behind it continue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, Self, cast, get_args

from pydantic import Field

from astraflow_contrib_tinker.routes.bodies import Body, TimeToLive, parsed
from astraflow_contrib_tinker.service import Service
from astraflow_contrib_tinker.wire.datums import (
    GradientRequest,
    head_of_protobuf,
    read_json,
    read_protobuf,
)
from astraflow_contrib_tinker.wire.results import Result
from astraflow_contrib_tinker.work.futures import Promise
from astraflow_contrib_tinker.work.kept import MOST_KEPT, MOST_KEPT_BYTES
from astraflow_contrib_tinker.work.ordering import digest_of
from astraflow_contrib_tinker.work.training import TrainedModel
from astraflow_core.errors import Refused
from astraflow_core.protocols.trainer import AdamWStep

RequestKind = Literal[
    "forward_backward", "forward", "optim_step", "save_weights", "save_weights_for_sampler", "save_weights_external",
    "load_weights",
]  # fmt: skip
KINDS: tuple[RequestKind, ...] = get_args(RequestKind)
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Beta = Annotated[float, Field(ge=0, lt=1)]


class _Head(Body):
    model_id: str
    seq_id: int | None = None


class _Adam(Body):
    learning_rate: NotNegative = 1e-4
    beta1: Beta = 0.9
    beta2: Beta = 0.95
    eps: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-12
    weight_decay: NotNegative = 0.0
    grad_clip_norm: Annotated[float, Field(allow_inf_nan=False)] = 0.0


class _OptimStep(Body):
    adam_params: _Adam | None = None


class _Save(Body):
    path: str | None = None
    overwrite: bool = False
    ttl_seconds: TimeToLive = None


class _SaveForSampler(Body):
    path: str | None = None
    sampling_session_seq_id: int | None = None
    kind: Literal["snapshot", "inflight"] = "snapshot"
    ttl_seconds: TimeToLive = None


class _SaveExternal(Body):
    path: str
    ttl_seconds: TimeToLive = None
    age_encryption_recipients: list[str] | None = None


class _Load(Body):
    path: str
    optimizer: bool


@dataclass(frozen=True, slots=True)
class NumberedRequest:
    """``body`` as it was sent, decompressed: protobuf if not ``json``."""

    kind: RequestKind
    body: bytes
    json: bool = True

    def head(self) -> tuple[str, int | None]:
        """The model and the number; :class:`Refused` if the body names none."""
        if not self.json:
            return head_of_protobuf(self.body)
        head = parsed(self.body, _Head)
        return head.model_id, head.seq_id

    @property
    def file_kind(self) -> str:
        """Kind and format, as kept requests are named."""
        return f"{self.kind}.{'json' if self.json else 'protobuf'}"

    @classmethod
    def of_file(cls, kind: str, body: bytes) -> Self:
        """The one that was kept."""
        asked, _, form = kind.partition(".")
        return cls(cast(RequestKind, asked), body, form == "json")

    def digest(self) -> bytes:
        """The digest by which a repeated request is recognised."""
        return digest_of(self.kind.encode(), self.body)

    async def work(self, service: Service, model: TrainedModel, number: int) -> Result:
        """Do what is asked; :class:`Refused` for a mistake in it."""
        match self.kind:
            case "forward_backward" | "forward":
                return await service.gradient(model, self._gradient())
            case "optim_step":
                return await service.step(model, self._settings())
            case "save_weights":
                asked = parsed(self.body, _Save)
                saved = await service.save(
                    model, "weights", asked.path, asked.overwrite, number, asked.ttl_seconds
                )
                return {"type": "save_weights", "path": saved.path}
            case "save_weights_for_sampler":
                return await self._save_for_sampler(service, model, number)
            case "save_weights_external":
                return await self._save_external(service, model, number)
            case "load_weights":
                return await self._load(service, model)

    def _gradient(self) -> Callable[[], GradientRequest]:
        if self.json:
            return lambda: read_json(self.body, self.kind == "forward_backward")
        return lambda: read_protobuf(self.body)

    def _settings(self) -> AdamWStep:
        given = parsed(self.body, _OptimStep).adam_params
        if given is None:
            raise Refused(400, "adam_params are missing: this server makes steps of AdamW")
        return AdamWStep(
            given.learning_rate,
            (given.beta1, given.beta2),
            given.eps,
            given.weight_decay,
            max(given.grad_clip_norm, 0.0),
        )

    async def _save_for_sampler(self, service: Service, model: TrainedModel, number: int) -> Result:
        asked = parsed(self.body, _SaveForSampler)
        sampler_number = asked.sampling_session_seq_id
        if asked.path is None and sampler_number is None:
            raise Refused(400, "give path, or sampling_session_seq_id for weights without a name")
        told: dict[str, object] = {"type": "save_weights_for_sampler"}
        if sampler_number is None:
            saved = await service.save(
                model, "sampler_weights", asked.path, False, number, asked.ttl_seconds
            )
            return {**told, "path": saved.path}
        sampler = await service.snapshot(model, sampler_number, asked.kind == "inflight")
        return {**told, "sampling_session_id": sampler.id}

    async def _save_external(self, service: Service, model: TrainedModel, number: int) -> Result:
        asked = parsed(self.body, _SaveExternal)
        if asked.age_encryption_recipients:
            raise Refused(
                400, "age_encryption_recipients: this server does not encrypt; leave it out"
            )
        saved = await service.save(
            model, "external_weights", asked.path, False, number, asked.ttl_seconds
        )
        return {"type": "save_weights_external", "path": saved.path, "size_bytes": saved.size}

    async def _load(self, service: Service, model: TrainedModel) -> Result:
        asked = parsed(self.body, _Load)
        saved, folder = service.store.find(asked.path, "weights")
        if saved.lora_rank != model.lora_rank:
            raise Refused(
                400,
                f"{asked.path} has adapters of rank {saved.lora_rank}, the model of rank {model.lora_rank}; 0 stands for "
                "all weights",
            )
        await service.computing.do(model.load_state, folder, asked.optimizer)
        return {"type": "load_weights", "path": asked.path, "model_id": model.id}


async def put_numbered(service: Service, asked: NumberedRequest) -> Promise:
    """The promise for a request, which is on disk first if its model is kept."""
    model_id, number = asked.head()
    model = service.model(model_id)
    kept, work = model.kept, partial(asked.work, service, model, number or 0)
    if kept is not None and not kept.has_room(len(asked.body)):
        return model.order.put(number, asked.digest(), _no_room)
    promise = model.order.put(number, asked.digest(), work, len(asked.body))
    if kept is not None and number is not None:
        await asyncio.to_thread(kept.write, number, asked.file_kind, asked.body)
    return promise


async def _no_room() -> Result:
    raise Refused(
        400,
        f"{MOST_KEPT} requests or {MOST_KEPT_BYTES >> 30} GiB of them are kept since the model's last state, which follows an "
        "optimizer step; make one more often",
    )
