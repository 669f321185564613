"""Token ids in, token ids out, as vLLM has it: ``POST /inference/v1/generate``."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from astraflow_gateway.dialects.bodies import most_tokens, parsed, sampling_of, stops_of
from astraflow_gateway.dialects.chat_completions import usage
from astraflow_gateway.requests import BadRequest, ModelAnswer, ModelRequest

MOST_ID = 2**31 - 1


class _Sampling(msgspec.Struct):
    max_tokens: int | None = None
    n: int = 1
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None


class GenerateBody(msgspec.Struct):
    """The fields that are read; an agent may send others."""

    token_ids: list[int]
    model: str = ""
    sampling_params: _Sampling = msgspec.field(default_factory=_Sampling)
    stream: bool = False


def read(body: bytes) -> tuple[GenerateBody, ModelRequest]:
    """The request in ``body``; :class:`BadRequest` names the field that is wrong."""
    asked = parsed(body, GenerateBody)
    if asked.stream:
        raise BadRequest("stream is not available here", param="stream")
    if not asked.token_ids:
        raise BadRequest("token_ids is empty", param="token_ids")
    if not all(0 <= token <= MOST_ID for token in asked.token_ids):
        raise BadRequest("token_ids has a number that is no token id", param="token_ids")
    wanted = asked.sampling_params
    if wanted.n != 1:
        raise BadRequest(f"n is {wanted.n}; expected 1", param="sampling_params.n")
    request = ModelRequest(
        model=asked.model,
        prompt=np.array(asked.token_ids, np.int32),
        max_tokens=most_tokens(wanted.max_tokens),
        stop=stops_of(wanted.stop),
        stop_token_ids=tuple(wanted.stop_token_ids or ()),
        sampling=sampling_of(wanted),
    )
    return asked, request


def whole(answer: ModelAnswer, id: str) -> dict[str, Any]:
    """The reply."""
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
        "request_id": id,
        "prompt_token_ids": answer.prompt.tolist(),
        "choices": choices,
        "usage": usage(answer),
    }
