"""Sampling sessions and samples."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field

from astraflow_contrib_tinker.routes.bodies import Body, later, parsed, read
from astraflow_contrib_tinker.service import Service
from astraflow_contrib_tinker.wire.datums import JsonModelInput, tokens_of
from astraflow_contrib_tinker.work.losses import NO_STABILITY_INFO
from astraflow_contrib_tinker.work.sampling import SampleWish
from astraflow_core.errors import Refused
from astraflow_core.types import Sampling

MOST_SAMPLES = 1024
MOST_STOPS = 16
_TOP_K = ("topk_prompt_logprobs", "topk_sample_logprobs", "prompt_alt_tokens_k")


class _Params(Body):
    max_tokens: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    seed: int | None = None
    stop: str | list[str] | list[int] | None = None
    temperature: Annotated[float, Field(ge=0, le=1000)] = 1.0
    top_k: Annotated[int, Field(ge=-1, lt=1 << 31)] = -1
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0


class _Sample(Body):
    sampling_session_id: str
    seq_id: int | None = None
    num_samples: Annotated[int, Field(ge=1, le=MOST_SAMPLES)] = 1
    prompt: JsonModelInput
    sampling_params: _Params
    prompt_logprobs: bool | None = None
    prompt_logprobs_last_n: int | None = None
    topk_prompt_logprobs: int = 0
    topk_sample_logprobs: int = 0
    prompt_alt_tokens_k: int = 0
    record_stability_info: bool | None = None
    target_prompt_logprobs: Any = None


class _CreateSampler(Body):
    session_id: str
    sampling_session_seq_id: Annotated[int, Field(ge=0, lt=1 << 63)]
    base_model: str | None = None
    model_path: str | None = None


def sampling_routes(service: Service) -> APIRouter:
    """Endpoints of samples."""
    routes = APIRouter()

    @routes.post("/create_sampling_session")
    async def create_sampling_session(request: Request) -> dict[str, Any]:
        asked = await read(request, _CreateSampler)
        if asked.model_path is None and asked.base_model != service.base.name:
            raise Refused(
                400,
                f"the model {str(asked.base_model)[:120]!r}: this server has {service.base.name!r}",
            )
        session = service.session(asked.session_id)
        sampler = service.create_sampler(session, asked.sampling_session_seq_id, asked.model_path)
        return {"type": "create_sampling_session", "sampling_session_id": sampler.id}

    @routes.post("/asample")
    async def asample(request: Request) -> dict[str, Any]:
        body = await request.body()
        asked = parsed(body, _Sample)
        sampler = service.sampler(asked.sampling_session_id)
        promise, ids = service.sample(
            sampler, asked.seq_id, body, _wish(asked, service.base.config.vocabulary)
        )
        return later(promise, sample_sequence_ids=ids)

    return routes


def _wish(asked: _Sample, vocabulary: int) -> SampleWish:
    given = asked.sampling_params
    unknown = [name for name in _TOP_K if getattr(asked, name)]
    if asked.target_prompt_logprobs is not None:
        unknown.append("target_prompt_logprobs")
    if asked.prompt_logprobs_last_n is not None:
        unknown.append("prompt_logprobs_last_n")
    if given.seed is not None:
        unknown.append("seed")
    if asked.record_stability_info:
        raise Refused(400, f"record_stability_info: {NO_STABILITY_INFO}")
    if unknown:
        raise Refused(400, f"{unknown[0]}: engines of this server have none; leave it out")
    texts, ids = _stops(given.stop, vocabulary)
    sampling = Sampling(
        max_tokens=given.max_tokens or 0,
        temperature=given.temperature,
        top_p=given.top_p,
        top_k=max(given.top_k, 0),
        stop_token_ids=ids,
        ignore_eos=given.stop == [],
    )
    prompt = tokens_of(asked.prompt, "prompt")
    return SampleWish(prompt, asked.num_samples, sampling, texts, bool(asked.prompt_logprobs))


def _stops(
    stop: str | list[str] | list[int] | None, vocabulary: int
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Texts and tokens that end a sequence."""
    given = [stop] if isinstance(stop, str) else stop or []
    if len(given) > MOST_STOPS or "" in given:
        raise Refused(400, f"stop: expected at most {MOST_STOPS} stops, none of them empty")
    texts = tuple(each for each in given if isinstance(each, str))
    ids = tuple(each for each in given if isinstance(each, int))
    for token in ids:
        if not 0 <= token < vocabulary:
            raise Refused(
                400, f"stop: the token id {token} is outside the vocabulary, 0 to {vocabulary - 1}"
            )
    return texts, ids
