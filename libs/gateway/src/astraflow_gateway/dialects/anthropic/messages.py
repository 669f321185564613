"""Anthropic messages: ``POST /v1/messages``, ``POST /v1/messages/count_tokens``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from astraflow_gateway.dialects.anthropic.body import (
    MessagesBody,
    MessagesPrompt,
    request_of,
    sampled_request_of,
)
from astraflow_gateway.dialects.anthropic.provider import Anthropic
from astraflow_gateway.dialects.anthropic.reply import events, whole
from astraflow_gateway.dialects.bodies import parsed
from astraflow_gateway.dialects.dialect import Dialect, Exchange, Json, Route, event
from astraflow_gateway.episode import Episode
from astraflow_gateway.requests import BadRequest, ModelAnswer


class Messages(Dialect):
    """The dialect of Anthropic's clients."""

    path = "/v1/messages"
    provider = Anthropic()

    def __init__(self) -> None:
        self.routes = (Route("POST", f"{self.path}/count_tokens", _count),)

    def read(self, body: bytes, episode: Episode) -> Exchange:
        """The request in ``body``."""
        asked = parsed(body, MessagesBody)

        def streamed(answer: ModelAnswer) -> Iterator[bytes]:
            for each in events(answer, asked.shows_thinking):
                yield event(each, each["type"])

        return Exchange(
            sampled_request_of(asked),
            bool(asked.stream),
            lambda answer: whole(answer, asked.shows_thinking),
            streamed,
        )

    def failed(self, refused: BadRequest) -> bytes:
        """The event ``error``."""
        return event(self.provider.error(refused), "error")


def _count(episode: Episode, body: bytes, path: Mapping[str, str]) -> Json:
    """How many tokens the prompt would have; nothing of it is kept."""
    return {"input_tokens": episode.prompt_tokens(request_of(parsed(body, MessagesPrompt)))}
