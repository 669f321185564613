"""Token ids in, token ids out, as vLLM has it: ``POST /inference/v1/generate``."""

from __future__ import annotations

import msgspec
import numpy as np

from astraflow_gateway.dialects.bodies import (
    choices_of,
    most_tokens,
    parsed,
    sampling_of,
    stops_of,
)
from astraflow_gateway.dialects.dialect import Dialect, Exchange, Json
from astraflow_gateway.dialects.openai.provider import OpenAi, usage
from astraflow_gateway.episode import Episode
from astraflow_gateway.requests import BadRequest, ModelAnswer, ModelRequest

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
    stream: bool = False


class TokenIds(Dialect):
    """The dialect of clients that render and parse by themselves."""

    path = "/inference/v1/generate"
    provider = OpenAi()
    routes = ()

    def read(self, body: bytes, episode: Episode) -> Exchange:
        """The request in ``body``."""
        return Exchange(_request(body), False, _complete_reply, lambda answer: iter(()))

    def failed(self, refused: BadRequest) -> bytes:
        """Nothing: this dialect has no streams."""
        return b""


def _request(body: bytes) -> ModelRequest:
    asked = parsed(body, _GenerateBody)
    if asked.stream:
        raise BadRequest("stream is not available here", param="stream")
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
    choices = []
    for index, choice in enumerate(answer.choices):
        tokens = [] if choice.result is None else choice.result.tokens.tolist()
        logprobs = [] if choice.result is None else choice.result.logprobs.tolist()
        content = [
            {"token": f"token_id:{token}", "logprob": logprob, "bytes": None, "top_logprobs": []}
            for token, logprob in zip(tokens, logprobs, strict=True)
        ]
        finish = "length" if choice.finish == "length" else "stop"
        choices.append(
            {
                "index": index,
                "token_ids": tokens,
                "finish_reason": finish,
                "logprobs": {"content": content},
            }
        )
    return {
        "request_id": f"gen-{answer.id}",
        "prompt_token_ids": answer.prompt.tolist(),
        "choices": choices,
        "usage": usage(answer),
    }
