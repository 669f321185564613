"""What the server asks of a protocol that agents speak."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from astraflow_gateway.episode import Episode
from astraflow_gateway.requests import BadRequest, ModelAnswer, ModelRequest

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request that was read, and the form of its reply: as a ``whole``, or in ``events`` (server-sent, encoded)
    if ``stream``. Both depend on the answer alone, so that a retry gets the same."""

    wanted: ModelRequest
    stream: bool
    whole: Callable[[ModelAnswer], Json]
    events: Callable[[ModelAnswer], Iterator[bytes]]


@dataclass(frozen=True, slots=True)
class Route:
    """A route at which nothing is sampled. ``answer`` gets the episode, the body and what ``{…}`` in ``path`` were."""

    method: str
    path: str
    answer: Callable[[Episode, bytes, Mapping[str, str]], Json]


@dataclass(frozen=True, slots=True)
class Model:
    """A model that agents may name: a policy, or a frozen engine."""

    name: str
    context_length: int


class Provider(Protocol):
    """The shapes that the dialects of one provider share."""

    def error(self, refused: BadRequest) -> Json:
        """An error."""

    def model(self, model: Model) -> Json:
        """A model."""

    def models(self, models: Sequence[Model]) -> Json:
        """All models."""


class Dialect(Protocol):
    """A protocol: requests are posted to ``path``."""

    path: str
    provider: Provider
    routes: Sequence[Route]
    """The others below ``path``."""

    def read(self, body: bytes, episode: Episode) -> Exchange:
        """The request in ``body``; :class:`BadRequest` names the field that is wrong."""

    def failed(self, refused: BadRequest) -> bytes:
        """The end of a stream that has begun, and cannot be answered."""


def event(data: Mapping[str, Any], name: str = "") -> bytes:
    """A server-sent event."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + msgspec.json.encode(data) + b"\n\n"
