"""The engine ``vllm``: what :class:`astraflow_core.protocols.engine.Engine` asks, done by a server."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from astraflow_core.errors import (
    AstraFlowError,
    DeadlineExceeded,
    UserError,
)
from astraflow_core.protocols.engine import PauseMode
from astraflow_core.serving.desk import Flight
from astraflow_core.serving.model_folder import ModelFolder
from astraflow_core.types import (
    ComponentContext,
    GenerateRequest,
    GenerateResult,
    LogprobSemantics,
    Sampling,
    WeightSource,
)
from astraflow_plugin_vllm import requests
from astraflow_plugin_vllm.client import ServerRefused, ServerSilent
from astraflow_plugin_vllm.config import VllmConfig
from astraflow_plugin_vllm.server import AttachedServer, ChildServer, Server
from astraflow_plugin_vllm.session import Session, wrong_version
from astraflow_plugin_vllm.updates import Version

_AGAIN_S = 0.1


class VllmEngine:
    """Implements :class:`astraflow_core.protocols.engine.Engine`. ``server`` is for tests: one that is
    used as it is, instead of what the config asks for."""

    def __init__(
        self, config: VllmConfig, context: ComponentContext, server: Server | None = None
    ) -> None:
        self._config = config
        self._context = context
        self._given = server
        self._session: Session | None = None

    @property
    def logprob_semantics(self) -> LogprobSemantics:
        """As the key ``logprobs`` says."""
        processed = self._config.logprobs == "processed"
        return LogprobSemantics(temperature=processed, truncation=processed)

    @property
    def context_length(self) -> int:
        """What the server says."""
        return self._running.context_length

    @property
    def _running(self) -> Session:
        if self._session is None:
            raise RuntimeError("engine 'vllm' is not running: it was not started, or it was closed")
        return self._session

    async def start(self, model: Path) -> None:
        """Start the server on the folder ``model``, or join the one of ``url`` and load it there."""
        if self._session is not None:
            raise RuntimeError("engine 'vllm' is running already")
        folder = await asyncio.to_thread(ModelFolder.read, model)
        url = self._config.url
        server = self._given or (
            ChildServer(
                self._config, model, self._context.directory / "vllm.log", self._context.seed
            )
            if url is None
            else AttachedServer(url)
        )
        await server.start()
        session = Session(server, self._config, folder)
        try:
            await session.begin(fresh=self._given is None and url is None)
        except BaseException:
            await session.end()
            raise
        self._session = session

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """Sample one sequence; if the caller is cancelled, the server is told by the connection's end."""
        session = self._running
        self._check(request)
        flight = session.desk.enter(request, f"{session.name}-{uuid.uuid4().hex}")
        try:
            if not await flight.admission:
                return requests.nothing(request)
            session.begun(flight)
            result = await session.sample(flight)
            if flight.superseded:
                raise wrong_version(flight, session.version.number)
            return result
        except (ServerSilent, ServerRefused) as error:
            raise await session.explain(error) from error
        finally:
            session.desk.leave(flight)

    async def score(self, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        """A request like others: it waits its turn, and while the engine is paused. vLLM samples a token
        after those that it scores, so one less than :attr:`context_length` can be."""
        session = self._running
        self._check_tokens("a sequence to score", tokens, 1)
        name = f"{session.name}-{uuid.uuid4().hex}"
        flight = session.desk.enter(GenerateRequest(name, tokens, Sampling(1)), name)
        try:
            if not await flight.admission:
                raise AstraFlowError("a score was aborted before it began")
            return await session.score(flight, tokens)
        except (ServerSilent, ServerRefused) as error:
            raise await session.explain(error) from error
        finally:
            session.desk.leave(flight)

    async def pause(self, mode: PauseMode) -> None:
        """Hold back what comes, then stop, drain or end what runs."""
        session = self._running
        desk = session.desk
        desk.close()
        if mode == "wait":
            if session.paused:  # what is frozen has to go on to come to its end
                await session.post("/resume")
                session.paused = False
            await desk.drained()
            if desk.is_open:
                return
        await session.post(f"/pause?mode={mode}&clear_cache=false")
        session.paused = True
        if mode == "abort":
            await self._end(session, list(desk.running))

    async def resume(self) -> None:
        """Let the server and the requests that wait here go on."""
        session = self._running
        await session.post("/resume")
        session.paused = False
        session.desk.open()

    async def abort(self, ids: list[str]) -> None:
        """End the named requests; unknown ids are ignored, since they may just have ended."""
        session = self._running
        await self._end(session, session.desk.named(ids))

    async def load_weights(self, source: WeightSource) -> None:
        """Bring a version in. One that the server refuses half-way is replaced by the version before,
        which is why the engine has to be paused: nothing may be computed in between."""
        session = self._running
        if not session.paused:
            raise RuntimeError("engine 'vllm' loads weights only while it is paused")
        version = Version(source.version, (source.path,))
        await asyncio.to_thread(session.folder.check, version.files)
        await session.replace(version)
        stale = [
            flight
            for flight in session.desk.running
            if flight.request.pinned_version not in (None, version.number)
        ]
        for flight in stale:
            flight.superseded = True
        await self._end(session, stale)

    async def sleep(self, level: int) -> None:
        """Level 1 keeps the weights in main memory, level 2 drops them; both drop keys and values, so
        what is frozen ends with what it has. Needs ``sleep_mode = true``."""
        session = self._running
        if not self._config.sleep_mode:
            raise UserError("engine 'vllm' can sleep only with sleep_mode = true, on CUDA or ROCm")
        session.desk.close()
        await session.post(f"/sleep?level={level}&mode=abort")
        session.paused, session.slept = True, level
        await self._end(session, list(session.desk.running))

    async def wake(self) -> None:
        """Weights first, loaded anew after level 2; then room for keys and values. The engine stays
        paused, as it was when it fell asleep."""
        session = self._running
        await session.post("/wake_up?tags=weights")
        if session.slept == 2:
            await session.update.load(session.version)
        await session.post("/wake_up?tags=kv_cache")
        session.slept = 0
        await session.post("/pause?mode=keep&clear_cache=false")  # waking resumes the scheduler

    async def health(self) -> dict[str, float]:
        """Beside the gauges of the protocol: ``kv_cache_usage`` (a share), ``preemptions``."""
        session = self._running
        try:
            return await session.gauges()
        except (ServerSilent, ServerRefused) as error:
            raise await session.explain(error) from error

    async def close(self) -> None:
        """End all requests, then the server if it is ours."""
        session, self._session = self._session, None
        if session is not None:
            await session.end()

    async def _end(self, session: Session, flights: Iterable[Flight]) -> None:
        """Ask for the end of requests until they have ended: one that is on its way to the server is not
        known there yet."""
        pending = [flight for flight in flights if not flight.ended.is_set()]
        for flight in pending:
            flight.aborting = True
        waited, most = 0.0, self._config.control_deadline_s
        while pending:
            ids = [requests.external_id(flight.identifier) for flight in pending]
            await session.post("/abort_requests", {"request_ids": ids})
            ends = [asyncio.ensure_future(flight.ended.wait()) for flight in pending]
            await asyncio.wait(ends, timeout=_AGAIN_S)
            for end in ends:
                end.cancel()
            pending = [flight for flight in pending if not flight.ended.is_set()]
            waited += _AGAIN_S
            if pending and waited > most:
                raise DeadlineExceeded("the vLLM server", f"{len(pending)} requests to end", most)

    def _check(self, request: GenerateRequest) -> None:
        if request.sampling.max_tokens < 1:
            raise ValueError(f"request {request.id!r}: max_tokens must be at least 1")
        self._check_tokens(f"request {request.id!r}", request.prompt, request.sampling.max_tokens)

    def _check_tokens(self, what: str, tokens: npt.NDArray[np.int32], more: int) -> None:
        session = self._running
        if not len(tokens):
            raise ValueError(f"{what} has no tokens; at least one is needed")
        if len(tokens) + more > session.context_length:
            raise ValueError(
                f"{what}: {len(tokens)} tokens + {more} to sample exceed the context length of "
                f"{session.context_length}"
            )
        vocabulary = session.folder.config.vocabulary
        if tokens.min() < 0 or tokens.max() >= vocabulary:
            # The server would not refuse them: it would die of them.
            raise ValueError(f"{what} has token ids outside [0, {vocabulary})")
