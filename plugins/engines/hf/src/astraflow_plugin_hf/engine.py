"""The engine ``hf``: the asynchronous face of transformers' continuous batching."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from astraflow_core.errors import WeightsError
from astraflow_core.protocols.engine import PauseMode
from astraflow_core.types import ComponentContext, GenerateResult, LogprobSemantics, WeightSource
from astraflow_plugin_hf.batching import Batching
from astraflow_plugin_hf.config import HFConfig
from astraflow_plugin_hf.sampler import SEMANTICS, Record
from astraflow_serving.desk import Flight
from astraflow_serving.engine import Backend, DeskEngine, end_requests
from astraflow_serving.tokens import check_tokens

T = TypeVar("T")
_END_S = 60.0
"""Longest forward pass that the end of a request may have to wait for."""


class HFBackend(Backend):
    """What blocks is done by one thread of ``control``, as :class:`Batching` wants it."""

    def __init__(self, batching: Batching, config: HFConfig, control: ThreadPoolExecutor) -> None:
        vocabulary = batching.folder.config.vocabulary
        super().__init__("hf", config.max_batch, batching.context_length, vocabulary, _END_S)
        self.batching = batching
        self._control = control
        self._records: dict[Flight, Record] = {}

    async def call(self, work: Callable[[], T]) -> T:
        """Have something done that blocks."""
        return await asyncio.get_running_loop().run_in_executor(self._control, work)

    @property
    def version(self) -> int:
        """The sampler stamps it on every token."""
        return self.batching.sampler.version

    async def sample(self, flight: Flight) -> GenerateResult:
        """Give the request to the scheduler, and wait until the sampler has ended it."""
        request, loop = flight.request, asyncio.get_running_loop()
        if request.routing:
            self.batching.routing.recorder.check()
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
            self.batching.stops(request),
            lambda: loop.call_soon_threadsafe(settle),
        )
        self._records[flight] = record
        try:
            self.batching.begin(record, settle)
            await done
        finally:
            self.batching.drop(record)
            del self._records[flight]
        return record.result()

    async def score(
        self, identifier: str, tokens: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.float32]:
        """Computed between two decoding steps."""
        return await self.call(lambda: self.batching.score(tokens))

    async def halt(self, mode: PauseMode) -> None:
        """Pause in the manager's own pause window."""
        await self.call(self.batching.halt)

    async def go_on(self) -> None:
        """Close the window."""
        await self.call(self.batching.go_on)

    async def end(self, flights: Sequence[Flight]) -> None:
        """End requests in the sampler; the scheduler notices it afterwards."""
        for flight in flights:
            if flight in self._records:
                self.batching.sampler.end(self._records[flight], "abort")

    async def load(self, source: WeightSource) -> None:
        """Copy the version over the model."""
        if source.kind != "full":
            raise WeightsError(f"engine 'hf' takes whole versions, not {source.kind}s")
        await self.call(lambda: self.batching.load(source.path, source.version))

    async def gauges(self) -> dict[str, float]:
        """Those of the protocol."""
        self.tokens = self.batching.sampler.tokens
        return await super().gauges()

    async def close(self) -> None:
        """End running requests with ``finish_reason="abort"``, those that wait with an error, then the
        thread."""
        self.desk.close()
        self.desk.fail(RuntimeError("engine 'hf' was closed"))
        await end_requests(self, list(self.desk.running))
        await self.call(self.batching.stop)
        self._control.shutdown(wait=False)


class HFEngine(DeskEngine[HFBackend]):
    """Implements :class:`astraflow_core.protocols.engine.Engine`."""

    def __init__(self, config: HFConfig, context: ComponentContext) -> None:
        super().__init__("hf")
        self._config = config
        self._seed = context.seed

    @property
    def logprob_semantics(self) -> LogprobSemantics:
        """Temperature applied, truncation not."""
        return SEMANTICS

    async def start(self, model: Path) -> None:
        """Load the model and start the thread that decodes."""
        self._check_idle()
        control = ThreadPoolExecutor(1, thread_name_prefix="hf-control")
        batching = await asyncio.get_running_loop().run_in_executor(
            control, lambda: Batching(model, self._config, self._seed)
        )
        self._backend = HFBackend(batching, self._config, control)

    async def score(self, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        """Computed at once, between two decoding steps, paused or not."""
        backend = self._running
        check_tokens("a sequence to score", tokens, 0, backend.context_length, backend.vocabulary)
        return await backend.score("", tokens)
