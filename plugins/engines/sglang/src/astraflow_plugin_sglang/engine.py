"""The engine ``sglang``: what :class:`astraflow_core.protocols.engine.Engine` asks, done by a server."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from astraflow_core.errors import AstraFlowError, DeadlineExceeded, PreflightError
from astraflow_core.protocols.engine import PauseMode
from astraflow_core.serving.desk import Flight
from astraflow_core.serving.model_folder import ModelFolder
from astraflow_core.serving.tokens import check_request, check_tokens, nothing
from astraflow_core.types import (
    ComponentContext,
    GenerateRequest,
    GenerateResult,
    LogprobSemantics,
    Sampling,
    WeightSource,
)
from astraflow_plugin_sglang.client import ServerRefused, ServerSilent
from astraflow_plugin_sglang.config import SGLangConfig
from astraflow_plugin_sglang.generation import SEMANTICS
from astraflow_plugin_sglang.session import Session, Version, wrong_version

_AGAIN_S = 0.1


class SGLangEngine:
    """Implements :class:`astraflow_core.protocols.engine.Engine`."""

    def __init__(self, config: SGLangConfig, context: ComponentContext) -> None:
        self._config = config
        self._session: Session | None = None

    @property
    def logprob_semantics(self) -> LogprobSemantics:
        """Temperature applied, truncation not."""
        return SEMANTICS

    @property
    def context_length(self) -> int:
        """The key, else what the model allows."""
        return self._running.context_length

    @property
    def _running(self) -> Session:
        if self._session is None:
            raise RuntimeError(
                "engine 'sglang' is not running: it was not started, or it was closed"
            )
        return self._session

    async def start(self, model: Path) -> None:
        """Join the server and load ``model`` there as version 0."""
        if self._session is not None:
            raise RuntimeError("engine 'sglang' is running already")
        folder = await asyncio.to_thread(ModelFolder.read, model)
        session = Session(self._config, folder)
        try:
            await session.begin()
        except (ServerSilent, ServerRefused, DeadlineExceeded) as error:
            await session.end()
            raise PreflightError(
                f"the SGLang server at url = {self._config.url!r} is not there or refuses version 0: {error}"
            ) from error
        except BaseException:
            await session.end()
            raise
        self._session = session

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """Sample one sequence; if the caller is cancelled, the server is told."""
        session = self._running
        check_request(request, session.context_length, session.folder.config.vocabulary)
        flight = session.desk.enter(request, f"{session.name}-{uuid.uuid4().hex}")
        try:
            if not await flight.admission:
                return nothing(request)
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
        """A request like others: it waits its turn, and while the engine is paused. A token is sampled after
        those that are scored, so one less than :attr:`context_length` can be."""
        session = self._running
        length, vocabulary = session.context_length, session.folder.config.vocabulary
        check_tokens("a sequence to score", tokens, 1, length, vocabulary)
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
                await session.go_on()
            await desk.drained()
            if desk.is_open:
                return
        await session.halt(keep=mode != "abort")
        if mode == "abort":
            await self._end(session, list(desk.running))

    async def resume(self) -> None:
        """Let the server and the requests that wait here go on."""
        session = self._running
        await session.go_on()
        session.desk.open()

    async def abort(self, ids: list[str]) -> None:
        """End the named requests; unknown ids are ignored, since they may just have ended."""
        session = self._running
        await self._end(session, session.desk.named(ids))

    async def load_weights(self, source: WeightSource) -> None:
        """Bring a version in. The engine has to be paused: SGLang would otherwise wait until whatever runs
        has ended, and hold back all else."""
        session = self._running
        if not session.paused:
            raise RuntimeError("engine 'sglang' loads weights only while it is paused")
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
        """Not declared among the capabilities."""
        raise RuntimeError("engine 'sglang' lacks the capability 'sleep'")

    async def wake(self) -> None:
        """Not declared among the capabilities."""
        raise RuntimeError("engine 'sglang' lacks the capability 'sleep'")

    async def health(self) -> dict[str, float]:
        """The gauges of the protocol."""
        session = self._running
        return {
            "running": float(len(session.desk.running)),
            "waiting": float(session.desk.waiting),
            "version": float(session.version.number),
            "tokens_generated": float(session.tokens),
            "prompt_tokens": float(session.prompt_tokens),
            "decode_seconds": session.desk.busy_s,
        }

    async def close(self) -> None:
        """End our requests; the server goes on."""
        session, self._session = self._running, None
        await session.end()

    async def _end(self, session: Session, flights: Iterable[Flight]) -> None:
        """Ask for the end of requests until they have ended: one that is on its way to the server is not
        known there yet."""
        pending = [flight for flight in flights if not flight.ended.is_set()]
        waited, most = 0.0, self._config.control_deadline_s
        while pending:
            for flight in pending:
                await session.post("/abort_request", {"rid": flight.identifier})
            ends = [asyncio.ensure_future(flight.ended.wait()) for flight in pending]
            await asyncio.wait(ends, timeout=_AGAIN_S)
            for end in ends:
                end.cancel()
            pending = [flight for flight in pending if not flight.ended.is_set()]
            waited += _AGAIN_S
            if pending and waited > most:
                raise DeadlineExceeded("the SGLang server", f"{len(pending)} requests to end", most)
