"""What took time in the episodes of a traced task."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextvars import ContextVar

from astraflow_wire.groups import EpisodeSpan
from astraflow_wire.limits import MAX_SPAN_S, MAX_SPANS

MOST_OF_EPISODE = 64
"""Spans of one episode; an agent may make thousands of requests."""


class SpanLog:
    """The spans of a task's episodes, in order of their ends."""

    def __init__(self) -> None:
        self._spans: list[tuple[str, int, str, float, float]] = []
        self._counts: dict[int, int] = {}

    def add(self, name: str, episode: int, policy: str, began: float) -> None:
        """One that ends now; those beyond a bound are left out, but for the span of the whole episode."""
        count = self._counts[episode] = self._counts.get(episode, 0) + 1
        if count <= MOST_OF_EPISODE or name == EPISODE:
            self._spans.append((name, episode, policy, began, time.monotonic()))

    def encoded(self) -> list[EpisodeSpan]:
        """As they are pushed now."""
        now = time.monotonic()
        return [
            EpisodeSpan(n, e, p, _bounded(now - began), _bounded(ended - began))
            for n, e, p, began, ended in self._spans[-MAX_SPANS:]
        ]


EPISODE = "episode"
_current: ContextVar[tuple[SpanLog, int] | None] = ContextVar("spans", default=None)


@contextlib.contextmanager
def recording(log: SpanLog | None, episode: int) -> Iterator[None]:
    """Tasks of asyncio that are created in the block, and what they create, record in ``log`` as that episode."""
    token = _current.set(None if log is None else (log, episode))
    try:
        yield
    finally:
        _current.reset(token)


def record(name: str, policy: str, began: float) -> None:
    """Something that began at ``began`` (``time.monotonic()``) has ended; nothing if the task is not traced."""
    current = _current.get()
    if current is not None:
        log, episode = current
        log.add(name, episode, policy, began)


def _bounded(seconds: float) -> float:
    return min(max(seconds, 0.0), MAX_SPAN_S)
