"""Token ids in, token ids out, as vLLM has it: ``POST /inference/v1/generate``."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from astraflow_gateway.dialects.bodies import (
    choices_of,
    most_tokens,
    parsed,
    sampling_of,
    stops_of,
)
from astraflow_gateway.dialects.dialect import Dialect, Exchange, Json, event
from astraflow_gateway.dialects.openai.provider import DONE, OpenAi, StreamOptions, usage
from astraflow_gateway.episode import Episode
from astraflow_gateway.requests import BadRequest, Choice, ModelAnswer, ModelRequest

MOST_ID = 2**31 - 1


class _Sampling(msgspec.Struct):
    max_tokens: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None


class _GenerateBody(msgspec.Struct):
    token_ids: list[int]
    model: str = ""
    sampling_params: _Sampling = msgspec.field(default_factory=_Sampling)
    stream: bool | None = None
    stream_options: StreamOptions | None = None


class TokenIds(Dialect):
    """The dialect of clients that render and parse by themselves."""

    path = "/inference/v1/generate"
    provider = OpenAi()
    routes = ()

    def read(self, body: bytes, episode: Episode) -> Exchange:
        """The request in ``body``."""
        asked = parsed(body, _GenerateBody)

        def events(answer: ModelAnswer) -> Iterator[bytes]:
            yield from map(event, _chunks(asked, answer))
            yield DONE

        return Exchange(_request(asked), bool(asked.stream), _complete_reply, events)

    def failed(self, refused: BadRequest) -> bytes:
        """An error in place of a chunk."""
        return event(self.provider.error(refused)) + DONE


def _request(asked: _GenerateBody) -> ModelRequest:
    if not asked.token_ids:
        raise BadRequest("token_ids is empty", param="token_ids")
    if not all(0 <= token <= MOST_ID for token in asked.token_ids):
        raise BadRequest("token_ids contains a number that is not a token id", param="token_ids")
    wanted = asked.sampling_params
    # The sampled token alone has a log-prob: 1 asks for no more than that.
    if wanted.logprobs is not None and wanted.logprobs > 1:
        raise BadRequest(
            f"logprobs is {wanted.logprobs}; expected at most 1: only the log-prob of each sampled token is available",
            param="sampling_params.logprobs",
        )
    if wanted.prompt_logprobs is not None:
        raise BadRequest(
            "prompt_logprobs is not available: only the log-prob of each sampled token is",
            param="sampling_params.prompt_logprobs",
        )
    return ModelRequest(
        model=asked.model,
        prompt=np.array(asked.token_ids, np.int32),
        max_tokens=most_tokens(wanted.max_tokens),
        stop=stops_of(wanted.stop),
        stop_token_ids=tuple(wanted.stop_token_ids or ()),
        n=choices_of(wanted.n, "sampling_params.n"),
        sampling=sampling_of(wanted),
    )


def _complete_reply(answer: ModelAnswer) -> Json:
    return {
        "request_id": f"gen-{answer.id}",
        "prompt_token_ids": answer.prompt.tolist(),
        "choices": [_told(index, choice) for index, choice in enumerate(answer.choices)],
        "usage": usage(answer),
    }


def _chunks(asked: _GenerateBody, answer: ModelAnswer) -> Iterator[Json]:
    """A chunk for each reply, and the usage if ``asked`` for."""
    name = {"request_id": f"gen-{answer.id}"}
    for index, choice in enumerate(answer.choices):
        yield {**name, "choices": [_told(index, choice)], "usage": None}
    if asked.stream_options is not None and asked.stream_options.include_usage:
        yield {**name, "choices": [], "usage": usage(answer)}


def _told(index: int, choice: Choice) -> Json:
    tokens = [] if choice.result is None else choice.result.tokens.tolist()
    logprobs = [] if choice.result is None else choice.result.logprobs.tolist()
    content = [
        {"token": f"token_id:{token}", "logprob": logprob, "bytes": None, "top_logprobs": []}
        for token, logprob in zip(tokens, logprobs, strict=True)
    ]
    return {
        "index": index,
        "token_ids": tokens,
        "finish_reason": "length" if choice.finish == "length" else "stop",
        "logprobs": {"content": content},
    }
