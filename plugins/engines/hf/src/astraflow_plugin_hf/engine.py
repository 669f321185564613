"""The engine ``hf``: the asynchronous face of transformers' continuous batching."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from astraflow_core.errors import WrongVersion
from astraflow_core.protocols.engine import PauseMode
from astraflow_core.serving.desk import Desk, Flight
from astraflow_core.serving.tokens import check_request, check_tokens, nothing
from astraflow_core.types import (
    ComponentContext,
    GenerateRequest,
    GenerateResult,
    LogprobSemantics,
    WeightSource,
)
from astraflow_plugin_hf.batching import Batching
from astraflow_plugin_hf.config import HFConfig
from astraflow_plugin_hf.sampler import SEMANTICS, Record

T = TypeVar("T")


class HFEngine:
    """Implements :class:`astraflow_core.protocols.engine.Engine`."""

    def __init__(self, config: HFConfig, context: ComponentContext) -> None:
        self._config = config
        self._seed = context.seed
        self._batching: Batching | None = None
        self._desk = Desk(config.max_batch)
        self._records: dict[Flight, tuple[Record, asyncio.Future[None]]] = {}
        self._control = ThreadPoolExecutor(1, thread_name_prefix="hf-control")
        self._prompt_tokens = 0

    @property
    def logprob_semantics(self) -> LogprobSemantics:
        """Temperature applied, truncation not."""
        return SEMANTICS

    @property
    def context_length(self) -> int:
        """The least of the model's positions, ``cache_gb`` and the key ``context_length``."""
        return self._running.context_length

    @property
    def _running(self) -> Batching:
        if self._batching is None:
            raise RuntimeError("engine 'hf' is not running: it was not started, or it was closed")
        return self._batching

    async def _call(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._control, work)

    async def start(self, model: Path) -> None:
        """Load the model and start the thread that decodes."""
        if self._batching is not None:
            raise RuntimeError("engine 'hf' is running already")
        self._batching = await self._call(lambda: Batching(model, self._config, self._seed))

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """Sample one sequence; if the caller is cancelled, so is the request."""
        batching = self._running
        check_request(request, batching.context_length, batching.folder.config.vocabulary)
        flight = self._desk.enter(request, uuid.uuid4().hex)
        try:
            if not await flight.admission:
                return nothing(request)
            return await self._sample(batching, flight)
        finally:
            self._desk.leave(flight)

    async def _sample(self, batching: Batching, flight: Flight) -> GenerateResult:
        request, loop = flight.request, asyncio.get_running_loop()
        self._check_pin(request, batching.sampler.version)
        done: asyncio.Future[None] = loop.create_future()

        def settle(error: Exception | None = None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        record = Record(
            request,
            flight.identifier,
            batching.stops(request),
            lambda: loop.call_soon_threadsafe(settle),
        )
        self._prompt_tokens += len(request.prompt)
        self._records[flight] = record, done
        try:
            batching.begin(record, settle)
            await done
        finally:
            batching.drop(record)
            del self._records[flight]
        if flight.superseded:
            self._check_pin(request, batching.sampler.version)
        return record.result()

    def _check_pin(self, request: GenerateRequest, served: int) -> None:
        if request.pinned_version not in (None, served):
            raise WrongVersion(
                f"request {request.id!r} is pinned to version {request.pinned_version}; version {served} "
                "is served"
            )

    async def score(self, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        """Computed between two decoding steps."""
        batching = self._running
        length, vocabulary = batching.context_length, batching.folder.config.vocabulary
        check_tokens("a sequence to score", tokens, 0, length, vocabulary)
        return await self._call(lambda: batching.score(tokens))

    async def pause(self, mode: PauseMode) -> None:
        """Hold back what comes, then stop, drain or end what runs."""
        batching = self._running
        self._desk.close()
        if mode == "wait":
            await self._call(batching.go_on)  # what is frozen has to go on to come to its end
            await self._desk.drained()
            if self._desk.is_open:
                return
        await self._call(batching.halt)
        if mode == "abort":
            await self._end(batching, list(self._desk.running))

    async def resume(self) -> None:
        """Go on decoding."""
        await self._call(self._running.go_on)
        self._desk.open()

    async def abort(self, ids: list[str]) -> None:
        """End the named requests; unknown ids are ignored, since they may just have ended."""
        await self._end(self._running, self._desk.named(ids))

    async def _end(self, batching: Batching, flights: list[Flight]) -> None:
        await asyncio.sleep(0)  # who was let in just now has its record after this
        for flight in flights:
            if flight in self._records:
                batching.sampler.end(self._records[flight][0], "abort")
        for flight in flights:
            await flight.ended.wait()

    async def load_weights(self, source: WeightSource) -> None:
        """Swap the weights; the engine is paused."""
        batching = self._running
        if not batching.halted:
            raise RuntimeError("engine 'hf' loads weights only while it is paused")
        await self._call(lambda: batching.load(source.path, source.version))
        stale = [
            flight
            for flight in self._desk.running
            if flight.request.pinned_version not in (None, source.version)
        ]
        for flight in stale:
            flight.superseded = True
        await self._end(batching, stale)

    async def sleep(self, level: int) -> None:
        """Not declared among the capabilities."""
        raise RuntimeError("engine 'hf' lacks the capability 'sleep'")

    async def wake(self) -> None:
        """Not declared among the capabilities."""
        raise RuntimeError("engine 'hf' lacks the capability 'sleep'")

    async def health(self) -> dict[str, float]:
        """The gauges of the protocol."""
        batching = self._running
        return {
            "running": float(len(self._desk.running)),
            "waiting": float(self._desk.waiting),
            "version": float(batching.sampler.version),
            "tokens_generated": float(batching.sampler.tokens),
            "prompt_tokens": float(self._prompt_tokens),
            "decode_seconds": self._desk.busy_s,
        }

    async def close(self) -> None:
        """End running requests with ``finish_reason="abort"``, those that wait with an error, then the
        thread."""
        batching, self._batching = self._running, None
        self._desk.close()
        self._desk.fail(RuntimeError("engine 'hf' was closed"))
        await self._end(batching, list(self._desk.running))
        await self._call(batching.stop)
        self._control.shutdown(wait=False)
