"""OpenAI responses: ``POST /v1/responses`` and what was stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from astraflow_gateway.dialects.bodies import parsed
from astraflow_gateway.dialects.dialect import Dialect, Exchange, Json, Route, event
from astraflow_gateway.dialects.openai.provider import OpenAi
from astraflow_gateway.dialects.responses.body import (
    Asked,
    forget_response,
    keep_response,
    kept_response,
    request_of,
)
from astraflow_gateway.dialects.responses.reply import events, whole
from astraflow_gateway.episode import Episode
from astraflow_gateway.requests import BadRequest, ModelAnswer


class _ResponsesShapes(OpenAi):
    """Those of OpenAI, where the messages are in the field ``input``."""

    def error(self, refused: BadRequest) -> Json:
        """An error."""
        told = super().error(refused)
        if refused.param == "messages":
            told["error"]["param"] = "input"
        return told


class Responses(Dialect):
    """The newer dialect of OpenAI's clients."""

    path = "/v1/responses"
    provider = _ResponsesShapes()

    def __init__(self) -> None:
        self.routes = (
            Route("POST", f"{self.path}/input_tokens", _count),
            Route("GET", f"{self.path}/{{response}}", _get),
            Route("DELETE", f"{self.path}/{{response}}", _delete),
        )

    def read(self, body: bytes, episode: Episode) -> Exchange:
        """The request in ``body``."""
        asked = parsed(body, Asked)

        def told(answer: ModelAnswer) -> Json:
            response = whole(asked, answer, episode.engines[answer.policy].tokenizer)
            keep_response(episode, response, asked)
            return response

        def streamed(answer: ModelAnswer) -> Iterator[bytes]:
            for each in events(asked, answer, told(answer)):
                yield event(each, each["type"])

        return Exchange(request_of(asked, episode), bool(asked.stream), told, streamed)

    def failed(self, refused: BadRequest) -> bytes:
        """The event ``error``."""
        told = self.provider.error(refused)["error"]
        error = {key: told[key] for key in ("code", "message", "param")}
        return event({"type": "error", **error, "sequence_number": 0}, "error")


def _count(episode: Episode, body: bytes, path: Mapping[str, str]) -> Json:
    """How many tokens the prompt would have; nothing of it is kept."""
    tokens = episode.prompt_tokens(request_of(parsed(body, Asked), episode))
    return {"object": "response.input_tokens", "input_tokens": tokens}


def _get(episode: Episode, body: bytes, path: Mapping[str, str]) -> Json:
    if (kept := kept_response(episode, path["response"])) is None:
        raise BadRequest(f"response with id {path['response']!r:.80} not found", 404, "not_found")
    return kept.response


def _delete(episode: Episode, body: bytes, path: Mapping[str, str]) -> Json:
    _get(episode, body, path)
    forget_response(episode, path["response"])
    return {"id": path["response"], "object": "response", "deleted": True}
