"""The engine ``torch``: the asynchronous face of the decoding thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from astraflow_core.errors import DeadlineExceeded, UserError
from astraflow_core.protocols.engine import PauseMode
from astraflow_core.types import (
    Bucket,
    ComponentContext,
    GenerateRequest,
    GenerateResult,
    Images,
    LogprobSemantics,
    Rendezvous,
    WeightSource,
)
from astraflow_plugin_torch_engine.batch import Job
from astraflow_plugin_torch_engine.config import TorchEngineConfig
from astraflow_plugin_torch_engine.loop import DecodeLoop
from astraflow_plugin_torch_engine.model import CausalModel
from astraflow_plugin_torch_engine.reading import ImageReader
from astraflow_plugin_torch_engine.receiving import BroadcastMembership
from astraflow_plugin_torch_engine.sampling import SEMANTICS
from astraflow_plugin_torch_engine.speculation.stored import stored_spans
from astraflow_plugin_torch_engine.stacked_adapters import MOST, PreparedAdapter
from astraflow_serving.tokens import check_request, check_tokens
from astraflow_torch_weights.preloading import preload as preload

_CLOSE_SECONDS = 60.0


class TorchEngine:
    """Implements :class:`astraflow_core.protocols.engine.Engine`; the methods only hand work to the
    :class:`DecodeLoop` and await its answer."""

    def __init__(self, config: TorchEngineConfig, context: ComponentContext) -> None:
        self._config = config
        self._seed = context.seed
        self._running: DecodeLoop | None = None
        self._member: BroadcastMembership | None = None

    @property
    def logprob_semantics(self) -> LogprobSemantics:
        """Temperature applied, truncation not."""
        return SEMANTICS

    @property
    def context_length(self) -> int:
        """The least of the model's positions, ``cache_gb`` and the key ``context_length``."""
        return self._loop.model.context_length

    @property
    def _loop(self) -> DecodeLoop:
        if self._running is None:
            raise RuntimeError(
                "engine 'torch' is not running: it was not started, or it was closed"
            )
        return self._running

    @property
    def _membership(self) -> BroadcastMembership:
        if self._member is None:
            raise RuntimeError("engine 'torch' is not running: it was not started")
        return self._member

    async def start(self, model: Path) -> None:
        """Load the model and start the decoding thread."""
        if self._running is not None:
            raise RuntimeError("engine 'torch' is running already")
        loaded = await asyncio.to_thread(CausalModel, model, self._config)
        events = asyncio.get_running_loop()
        self._member = BroadcastMembership(loaded.device, self._config.broadcast_deadline_s)
        self._reading = ImageReader(loaded)
        self._running = DecodeLoop(loaded, self._config, self._seed, events)

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """Sample one sequence; if the caller is cancelled, so is the request. :class:`ValueError` names what it cannot take."""
        loop = self._loop
        model = loop.model
        check_request(request, model.context_length, model.vocab)
        if request.routing:
            model.recorder.check()
        await self._reading.read(request.prompt, request.images)
        future: asyncio.Future[GenerateResult] = asyncio.get_running_loop().create_future()
        loop.submit(Job(request, future))
        try:
            return await future
        except asyncio.CancelledError:
            if loop.pending.lost is None:
                _command(loop, lambda: loop.abort(frozenset([request.id])))
            raise

    async def score(self, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        """Computed between two decoding steps."""
        loop = self._loop
        model = loop.model
        check_tokens("a sequence to score", tokens, 0, model.context_length, model.vocab)
        scores: npt.NDArray[np.float32] = await _command(loop, lambda: loop.score(tokens))
        return scores

    async def score_images(
        self, tokens: npt.NDArray[np.int32], images: Images
    ) -> npt.NDArray[np.float32]:
        """As :meth:`score`, of tokens with images."""
        loop = self._loop
        model = loop.model
        check_tokens("a sequence to score", tokens, 0, model.context_length, model.vocab)
        await self._reading.read(tokens, images)
        scores: npt.NDArray[np.float32] = await _command(loop, lambda: loop.score(tokens, images))
        return scores

    async def learn_drafts(
        self,
        tokens: npt.NDArray[np.int32],
        sampled: npt.NDArray[np.bool_],
        lengths: Sequence[int],
    ) -> bool:
        """See :class:`astraflow_engine_host.drafts.TakesDrafts`. Indexed between two decoding steps; nothing without
        speculation."""
        loop = self._loop
        if (speculation := loop.speculation) is None:
            return False
        spans = stored_spans(tokens, sampled, lengths, loop.model.vocab)
        useful: bool = await _command(loop, lambda: speculation.learn(spans))
        return useful

    @property
    def most_adapters(self) -> int:
        """None with ``batch_invariant``: the products that they need are none of its kernels."""
        return 0 if self._config.batch_invariant else MOST

    async def load_adapter(self, name: str, source: WeightSource | None) -> None:
        """Read concurrently with the decoding thread, and swapped in between two decoding steps."""
        loop = self._loop
        if not self.most_adapters:
            raise UserError(
                "engine 'torch' serves no adapters by name with batch_invariant = true: leave it out"
            )
        prepared = None if source is None else await asyncio.to_thread(loop.named.prepare, source)
        await _command(loop, lambda: loop.name_adapter(name, prepared))

    async def score_adapter(
        self, name: str, tokens: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.float32]:
        """Computed between two decoding steps."""
        loop = self._loop
        model = loop.model
        check_tokens("a sequence to score", tokens, 0, model.context_length, model.vocab)
        scores: npt.NDArray[np.float32] = await _command(
            loop, lambda: loop.score(tokens, adapter=name)
        )
        return scores

    async def pause(self, mode: PauseMode) -> None:
        """Requests that wait for admission keep waiting, in every mode."""
        loop = self._loop
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await _command(loop, lambda: loop.pause(mode, done))
        await done

    async def resume(self) -> None:
        """Go on decoding."""
        loop = self._loop
        await _command(loop, loop.resume)

    async def abort(self, ids: list[str]) -> None:
        """End the named requests; unknown ids are ignored, since they may just have ended."""
        loop = self._loop
        await _command(loop, lambda: loop.abort(frozenset(ids)))

    async def load_weights(self, source: WeightSource) -> None:
        """Swap the weights between two decoding steps; an adapter that is not merged is read before."""
        loop = self._loop
        beside: PreparedAdapter | None = None
        if source.kind == "adapter" and self._config.live_adapters:
            beside = await asyncio.to_thread(loop.named.prepare, source)
        await _command(loop, lambda: loop.load(source, beside))

    @property
    def workers(self) -> int:
        """One process, which takes one place in a broadcast."""
        return 1

    async def join(self, rendezvous: Rendezvous) -> None:
        """Meet the trainer and the others; decoding continues."""
        await asyncio.to_thread(self._membership.take, rendezvous)

    async def receive(self, version: int, buckets: Sequence[Bucket]) -> None:
        """Into memory next to the weights; swapped in once all of it is verified."""
        loop = self._loop
        tensors = await asyncio.to_thread(self._membership.receive, version, buckets)
        await _command(loop, lambda: loop.load_received(version, tensors))

    async def sleep(self, level: int) -> None:
        """Not declared among the capabilities."""
        raise RuntimeError("engine 'torch' lacks the capability 'sleep'")

    async def wake(self) -> None:
        """Not declared among the capabilities."""
        raise RuntimeError("engine 'torch' lacks the capability 'sleep'")

    async def health(self) -> dict[str, float]:
        """Beside the gauges of the protocol: ``prefill_tokens`` (computed; equal prompts of one
        admission once), ``prefill_seconds``, ``steps`` and, with ``live_adapters``, ``live_versions``. :class:`EngineLost` once the
        decoding thread has failed."""
        return self._loop.gauges()

    async def close(self) -> None:
        """End running and waiting requests with ``finish_reason="abort"``, then the thread."""
        loop, self._running = self._loop, None
        self._membership.leave()
        if loop.pending.lost is None:
            try:
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await _command(loop, loop.stop)
            except TimeoutError as error:
                reason = "it is in a step that does not end"
                raise DeadlineExceeded("the decoding thread", reason, _CLOSE_SECONDS) from error
        if not await asyncio.to_thread(loop.join, _CLOSE_SECONDS):
            raise DeadlineExceeded("the decoding thread", "it did not end", _CLOSE_SECONDS)


def _command(loop: DecodeLoop, command: Callable[[], Any]) -> asyncio.Future[Any]:
    """Have ``command`` carried out by the decoding thread, between two steps."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    loop.submit((command, future))
    return future
