"""Errors, models and streams as OpenAI's API has them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from astraflow_gateway.dialects.dialect import Json, Model
from astraflow_gateway.requests import BadRequest, ModelAnswer

DONE = b"data: [DONE]\n\n"
"""The end of a stream of chunks."""


class StreamOptions(msgspec.Struct):
    """What a stream has in addition to chunks: with ``include_usage``, a last chunk with the numbers of tokens."""

    include_usage: bool = False


class OpenAi:
    """The shapes that chat completions, responses and the token endpoint share."""

    def error(self, refused: BadRequest) -> Json:
        """An error; its ``code`` is the kind."""
        kind = "server_error" if refused.status >= 500 else "invalid_request_error"
        return {
            "error": {
                "message": refused.message,
                "type": kind,
                "param": refused.param or None,
                "code": refused.kind,
            }
        }

    def model(self, model: Model) -> Json:
        """A model; ``max_model_len`` as vLLM has it."""
        return {
            "id": model.name,
            "object": "model",
            "created": 0,
            "owned_by": "astraflow",
            "max_model_len": model.context_length,
        }

    def models(self, models: Sequence[Model]) -> Json:
        """All models."""
        return {"object": "list", "data": [self.model(each) for each in models]}


def usage(answer: ModelAnswer) -> dict[str, int]:
    """Numbers of tokens."""
    prompt, sampled = len(answer.prompt), answer.sampled
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
    }
