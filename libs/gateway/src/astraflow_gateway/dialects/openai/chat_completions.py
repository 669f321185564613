"""OpenAI chat completions: ``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Iterator

from astraflow_gateway.dialects.dialect import Dialect, Exchange, Json, event
from astraflow_gateway.dialects.openai.chat_body import read
from astraflow_gateway.dialects.openai.chat_reply import chunks, whole
from astraflow_gateway.dialects.openai.provider import DONE, OpenAi
from astraflow_gateway.episode import Episode
from astraflow_gateway.requests import BadRequest, ModelAnswer


class ChatCompletions(Dialect):
    """The dialect that most agents speak."""

    path = "/v1/chat/completions"
    provider = OpenAi()
    routes = ()

    def read(self, body: bytes, episode: Episode) -> Exchange:
        """The request in ``body``."""
        asked, wanted = read(body)

        def told(answer: ModelAnswer) -> Json:
            return whole(asked, answer, episode.engines[answer.policy].tokenizer)

        def events(answer: ModelAnswer) -> Iterator[bytes]:
            yield from map(event, chunks(asked, answer, episode.engines[answer.policy].tokenizer))
            yield DONE

        return Exchange(wanted, bool(asked.stream), told, events)

    def failed(self, refused: BadRequest) -> bytes:
        """An error in place of a chunk."""
        return event(self.provider.error(refused)) + DONE
