"""The calls of an engine whose requests wait at a desk, whatever it is that decodes."""

from __future__ import annotations

import asyncio
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from astraflow_core.errors import AstraFlowError, DeadlineExceeded, WrongVersion
from astraflow_core.protocols.engine import PauseMode
from astraflow_core.types import GenerateRequest, GenerateResult, Sampling, WeightSource
from astraflow_serving.desk import Flight, RequestQueue
from astraflow_serving.tokens import check_request, check_tokens, nothing

_AGAIN_S = 0.1


class Backend(ABC):
    """What decodes, between start and close. ``name`` is the component's; ``version`` is what is loaded,
    ``paused`` whether it was halted; ``tokens`` and ``prompt_tokens`` count; a sequence has at most
    ``context_length`` tokens with ids below ``vocabulary``, and requests end within ``end_s`` once that is
    asked for."""

    def __init__(
        self, name: str, max_batch: int, context_length: int, vocabulary: int, end_s: float
    ) -> None:
        self.name = name
        self.desk = RequestQueue(max_batch)
        self.context_length = context_length
        self.vocabulary = vocabulary
        self.end_s = end_s
        self.paused = False
        self.tokens = 0
        self.prompt_tokens = 0

    @property
    @abstractmethod
    def version(self) -> int:
        """The version of the weights that sample now."""

    @abstractmethod
    async def sample(self, flight: Flight) -> GenerateResult:
        """All of one request; ends early once :meth:`end` names it. Cancelling ends it too."""

    @abstractmethod
    async def score(
        self, identifier: str, tokens: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.float32]:
        """Raw log-probs of ``tokens``; one more may be sampled."""

    @abstractmethod
    async def halt(self, mode: PauseMode) -> None:
        """Return when nothing is decoded any longer; nothing runs in mode ``wait``."""

    @abstractmethod
    async def go_on(self) -> None:
        """Undo :meth:`halt`."""

    @abstractmethod
    async def end(self, flights: Sequence[Flight]) -> None:
        """Ask for the end of requests; asked again until they have ended."""

    @abstractmethod
    async def load(self, source: WeightSource) -> None:
        """Replace the weights while halted; if they do not fit, the old ones stay."""

    @abstractmethod
    async def close(self) -> None:
        """End all requests and free everything."""

    async def gauges(self) -> dict[str, float]:
        """The gauges of the protocol."""
        return {
            "running": float(len(self.desk.running)),
            "waiting": float(self.desk.waiting),
            "version": float(self.version),
            "tokens_generated": float(self.tokens),
            "prompt_tokens": float(self.prompt_tokens),
            "decode_seconds": self.desk.busy_s,
        }


B = TypeVar("B", bound=Backend)


class DeskEngine(Generic[B]):
    """All of :class:`astraflow_core.protocols.engine.Engine` but ``logprob_semantics`` and ``start``, which
    sets the backend."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._backend: B | None = None

    @property
    def _running(self) -> B:
        if self._backend is None:
            raise RuntimeError(
                f"engine {self._name!r} is not running: it was not started, or it was closed"
            )
        return self._backend

    def _check_idle(self) -> None:
        if self._backend is not None:
            raise RuntimeError(f"engine {self._name!r} is running already")

    @property
    def context_length(self) -> int:
        """The most tokens of a sequence."""
        return self._running.context_length

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """Sample one sequence; if the caller is cancelled, so is the request."""
        backend = self._running
        check_request(request, backend.context_length, backend.vocabulary)
        flight = backend.desk.enter(request, uuid.uuid4().hex)
        try:
            if not await flight.admission or flight.aborting:
                return nothing(request)
            if request.pinned_version not in (None, backend.version):
                raise _wrong_version(request, backend.version)
            backend.prompt_tokens += len(request.prompt)
            result = await backend.sample(flight)
            if flight.superseded:
                raise _wrong_version(request, backend.version)
            return result
        finally:
            backend.desk.leave(flight)

    async def score(self, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        """A request like others: it waits its turn, and while the engine is paused. A token may be sampled
        after those that are scored, so one less than :attr:`context_length` can be."""
        backend = self._running
        return await self._scored(tokens, lambda name: backend.score(name, tokens))

    async def _scored(
        self,
        tokens: npt.NDArray[np.int32],
        ask: Callable[[str], Awaitable[npt.NDArray[np.float32]]],
    ) -> npt.NDArray[np.float32]:
        """What ``ask`` returns of ``tokens``, when it is their turn."""
        backend = self._running
        check_tokens("a sequence to score", tokens, 1, backend.context_length, backend.vocabulary)
        name = uuid.uuid4().hex
        flight = backend.desk.enter(GenerateRequest(name, tokens, Sampling(1)), name)
        try:
            if not await flight.admission or flight.aborting:
                raise AstraFlowError("a score was aborted before it began")
            return await ask(name)
        finally:
            backend.desk.leave(flight)

    async def pause(self, mode: PauseMode) -> None:
        """Hold back what comes, then stop, drain or end what runs."""
        backend = self._running
        desk = backend.desk
        desk.close()
        if mode == "wait":
            if backend.paused:  # what is frozen has to continue to come to its end
                await backend.go_on()
                backend.paused = False
            await desk.drained()
            if desk.is_open:
                return
        await backend.halt(mode)
        backend.paused = True
        if mode == "abort":
            await end_requests(backend, list(desk.running))

    async def resume(self) -> None:
        """Go on decoding, and let the requests that wait begin."""
        backend = self._running
        await backend.go_on()
        backend.paused = False
        backend.desk.open()

    async def abort(self, ids: list[str]) -> None:
        """End the named requests; unknown ids are ignored, since they may just have ended."""
        backend = self._running
        await end_requests(backend, backend.desk.named(ids))

    async def load_weights(self, source: WeightSource) -> None:
        """Bring a version in while paused; requests that are pinned to another one end with
        :class:`WrongVersion`."""
        backend = self._running
        if not backend.paused:
            raise RuntimeError(f"engine {self._name!r} can load weights only while it is paused")
        await backend.load(source)
        await end_superseded(backend, source.version)

    async def sleep(self, level: int) -> None:
        """Put the engine to sleep; for engines that declare it."""
        raise RuntimeError(f"engine {self._name!r} lacks the capability 'sleep'")

    async def wake(self) -> None:
        """Wake the engine; for engines that declare ``sleep``."""
        raise RuntimeError(f"engine {self._name!r} lacks the capability 'sleep'")

    async def health(self) -> dict[str, float]:
        """The gauges of the protocol, and maybe more."""
        return await self._running.gauges()

    async def close(self) -> None:
        """End all requests and free everything; closing an engine that does not run is allowed."""
        backend, self._backend = self._backend, None
        if backend is not None:
            await backend.close()


async def end_requests(backend: Backend, flights: Sequence[Flight]) -> None:
    """Ask for the end of requests until they have ended: a server does not know yet what is on its way."""
    pending = [flight for flight in flights if not flight.ended.is_set()]
    for flight in pending:
        flight.aborting = True
    give_up = time.monotonic() + backend.end_s
    while pending:
        await backend.end(pending)
        ends = [asyncio.ensure_future(flight.ended.wait()) for flight in pending]
        await asyncio.wait(ends, timeout=_AGAIN_S)
        for waiting in ends:
            waiting.cancel()
        pending = [flight for flight in pending if not flight.ended.is_set()]
        if pending and time.monotonic() > give_up:
            raise DeadlineExceeded(
                f"the backend of engine {backend.name!r}",
                f"{len(pending)} requests to end",
                backend.end_s,
            )


async def end_superseded(backend: Backend, version: int) -> None:
    """End the requests that are pinned to another version than the one that was loaded."""
    stale = [
        flight
        for flight in backend.desk.running
        if flight.request.pinned_version not in (None, version)
    ]
    for flight in stale:
        flight.superseded = True
    await end_requests(backend, stale)


def _wrong_version(request: GenerateRequest, served: int) -> WrongVersion:
    return WrongVersion(
        f"request {request.id!r} is pinned to version {request.pinned_version}; version {served} is served"
    )
