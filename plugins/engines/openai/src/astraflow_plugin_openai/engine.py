"""The engine ``openai``: what a frozen model can do of :class:`astraflow_core.protocols.engine.Engine`."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from astraflow_core.errors import (
    AstraFlowError,
    EngineLost,
    PreflightError,
    UserError,
    WeightsError,
    WrongVersion,
)
from astraflow_core.protocols.engine import PauseMode
from astraflow_core.serving.desk import Desk, Flight
from astraflow_core.serving.model_folder import ModelConfig
from astraflow_core.serving.tokens import check_request, check_tokens, nothing
from astraflow_core.types import (
    ComponentContext,
    GenerateRequest,
    GenerateResult,
    LogprobSemantics,
    Sampling,
    WeightSource,
)
from astraflow_plugin_openai import completions
from astraflow_plugin_openai.client import Client, ServerAway, wait_before
from astraflow_plugin_openai.completions import Completion, TextCompletion, Texts, TokenCompletion
from astraflow_plugin_openai.config import OpenAIConfig

T = TypeVar("T")


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


@dataclass
class _Session:
    """Between start and close. ``texts``: only by text."""

    client: Client
    desk: Desk
    model: ModelConfig
    name: str
    context_length: int
    texts: Texts | None
    work: dict[Flight, asyncio.Task[None]] = field(default_factory=dict)
    tokens: int = 0
    prompt_tokens: int = 0


class OpenAIEngine:
    """Implements :class:`astraflow_core.protocols.engine.Engine` for a model that never changes: its
    version is 0."""

    def __init__(self, config: OpenAIConfig, context: ComponentContext) -> None:
        self._config = config
        self._session: _Session | None = None

    @property
    def logprob_semantics(self) -> LogprobSemantics:
        """As the key ``logprobs`` says."""
        processed = self._config.logprobs == "processed"
        return LogprobSemantics(temperature=processed, truncation=processed)

    @property
    def context_length(self) -> int:
        """The key, else what the server says, else the model's folder."""
        return self._running.context_length

    @property
    def _running(self) -> _Session:
        if self._session is None:
            raise RuntimeError(
                "engine 'openai' is not running: it was not started, or it was closed"
            )
        return self._session

    async def start(self, model: Path) -> None:
        """Find the model at the server. The folder ``model`` has the configuration of the same model, and
        its tokenizer; weights it needs none. Raises :class:`PreflightError` if the server lacks what the
        keys say of it."""
        if self._session is not None:
            raise RuntimeError("engine 'openai' is running already")
        config = self._config
        known = await asyncio.to_thread(ModelConfig.read, model)
        texts = await asyncio.to_thread(Texts, model) if config.tokens == "text" else None
        client = Client(config.url, self._key(), config.stall_deadline_s)
        try:
            served = await self._find(client)
            length = config.context_length or served.max_model_len or known.positions
            desk = Desk(config.max_batch)
            session = _Session(client, desk, known, served.id, length, texts)
            await self._probe(session)
        except BaseException:
            await client.close()
            raise
        self._session = session

    def _key(self) -> str | None:
        name = self._config.api_key_env
        if name is None:
            return None
        key = os.environ.get(name)
        if not key:
            raise PreflightError(f"api_key_env = {name!r}: the environment has no such variable")
        return key

    async def _find(self, client: Client) -> _Model:
        wanted = self._config.served_model
        try:
            if wanted is not None:
                answer = await client.get("/models")
            else:
                answer = await self._patiently(lambda: client.get("/models"))
            listed = msgspec.json.decode(answer, type=_Models).data
        except (AstraFlowError, msgspec.MsgspecError) as error:
            if (
                wanted is not None
            ):  # not every server can list; the probe will tell whether it is there
                return _Model(wanted)
            raise PreflightError(
                f"no OpenAI-compatible server lists its models at url = {client.url!r}: {error}; is it "
                "running, and does the URL end where its /models begins? If it lists none, set served_model"
            ) from error
        names = [one.id for one in listed]
        if wanted is None and len(listed) == 1:
            return listed[0]
        if wanted not in names:
            raise PreflightError(
                f"the server at {client.url} serves {', '.join(map(repr, names)) or 'nothing'}: name one by "
                f"served_model{'' if wanted is None else f', instead of {wanted!r}'}"
            )
        return listed[names.index(wanted)]

    async def _probe(self, session: _Session) -> None:
        """One token, to see whether the server is there and knows what the key ``tokens`` says."""
        prompt = np.array([*session.model.eos[:1], 0][:1], dtype=np.int32)
        probe = self._completion(session, GenerateRequest("probe", prompt, Sampling(1)))
        try:
            await self._follow(session, probe)
            count = len(probe.result(aborted=False).tokens)
        except AstraFlowError as error:
            raise PreflightError(f"a request of one token failed: {error}") from error
        if count != 1 and session.texts is None:
            raise PreflightError(
                f"the server at {session.client.url} returned {count} token ids where one was asked for: "
                "it does not know `return_token_ids`; set tokens = 'text'"
            )
        session.tokens = 0

    def _completion(self, session: _Session, request: GenerateRequest) -> Completion:
        if session.texts is None:
            return TokenCompletion(request, session.model.eos)
        return TextCompletion(request, session.model.eos, session.texts)

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """Sample one sequence; if the caller is cancelled, the connection is closed, by which servers know
        that nobody waits."""
        session = self._running
        check_request(request, session.context_length, session.model.vocabulary)
        if request.pinned_version not in (None, 0):
            raise WrongVersion(
                f"request {request.id!r} is pinned to version {request.pinned_version}; a frozen model "
                "serves version 0"
            )
        completion = self._completion(session, request)
        flight = session.desk.enter(request, request.id)
        try:
            if not await flight.admission:
                return nothing(request)
            session.prompt_tokens += len(request.prompt)
            if flight.aborting:
                return nothing(request)
            aborted = await self._run(session, flight, completion)
            return completion.result(aborted)
        finally:
            session.desk.leave(flight)

    async def _run(self, session: _Session, flight: Flight, completion: Completion) -> bool:
        """Follow the answer to its end; whether it was aborted."""
        work = asyncio.ensure_future(self._follow(session, completion))
        session.work[flight] = work
        try:
            await work
            return False
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not flight.aborting or (task is not None and task.cancelling()):
                raise
            return True
        finally:
            del session.work[flight]

    async def _follow(self, session: _Session, completion: Completion) -> None:
        body = {"model": session.name, **completion.body()}

        async def once() -> None:
            try:
                async with aclosing(session.client.events(completions.PATH, body)) as events:
                    async for event in events:
                        before = completion.count
                        done = completion.take(event)
                        session.tokens += completion.count - before
                        if done:
                            return
            except ServerAway as error:
                if completion.count:  # another try would sample something else
                    raise AstraFlowError(f"an answer was broken off: {error}") from error
                raise

        await self._patiently(once)

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call again while the server is away, for ``retry_s``; then it is lost."""
        give_up = time.monotonic() + self._config.retry_s
        attempt = 0
        while True:
            try:
                return await call()
            except ServerAway as error:
                try:
                    await wait_before(attempt, error, give_up - time.monotonic())
                except ServerAway:
                    raise EngineLost(
                        f"gave up after {self._config.retry_s:.0f} s and {attempt + 1} tries: {error}"
                    ) from error
            attempt += 1

    async def score(self, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        """A request like others, which needs ``tokens = "ids"`` and a server that knows vLLM's
        ``prompt_logprobs``. One token is sampled after those that are scored, so one less than
        :attr:`context_length` can be."""
        session = self._running
        if session.texts is not None:
            raise UserError("engine 'openai' can score only with tokens = 'ids'")
        model, length = session.model, session.context_length
        check_tokens("a sequence to score", tokens, 1, length, model.vocabulary)
        flight = session.desk.enter(GenerateRequest("score", tokens, Sampling(1)), "score")
        try:
            if not await flight.admission:
                raise AstraFlowError("a score was aborted before it began")
            body = {"model": session.name, **completions.body_of_score(tokens)}
            answer = await self._patiently(lambda: session.client.post(completions.PATH, body))
            return completions.read_scores(answer, tokens)
        finally:
            session.desk.leave(flight)

    async def pause(self, mode: PauseMode) -> None:
        """Hold back what comes, then drain or end what runs. A server of somebody else cannot be frozen."""
        session = self._running
        if mode == "keep":
            raise UserError("engine 'openai' lacks the capability 'pause.keep'")
        session.desk.close()
        if mode == "abort":
            await self._end(session, list(session.desk.running))
        else:
            await session.desk.drained()

    async def resume(self) -> None:
        """Let requests go to the server again."""
        self._running.desk.open()

    async def abort(self, ids: list[str]) -> None:
        """End the named requests; unknown ids are ignored, since they may just have ended."""
        session = self._running
        await self._end(session, session.desk.named(ids))

    async def _end(self, session: _Session, flights: list[Flight]) -> None:
        for flight in flights:
            flight.aborting = True
            if (work := session.work.get(flight)) is not None:
                work.cancel()
        for flight in flights:
            await flight.ended.wait()

    async def load_weights(self, source: WeightSource) -> None:
        """A frozen model has none to load."""
        raise WeightsError(
            f"engine 'openai' is frozen and takes no weights; version {source.version} of policy "
            f"{source.policy!r} needs an engine with capability weights.path"
        )

    async def sleep(self, level: int) -> None:
        """Not declared among the capabilities."""
        raise RuntimeError("engine 'openai' lacks the capability 'sleep'")

    async def wake(self) -> None:
        """Not declared among the capabilities."""
        raise RuntimeError("engine 'openai' lacks the capability 'sleep'")

    async def health(self) -> dict[str, float]:
        """The gauges of the protocol, of this engine's own requests: the server may have others."""
        session = self._running
        return {
            "running": float(len(session.desk.running)),
            "waiting": float(session.desk.waiting),
            "version": 0.0,
            "tokens_generated": float(session.tokens),
            "prompt_tokens": float(session.prompt_tokens),
            "decode_seconds": session.desk.busy_s,
        }

    async def close(self) -> None:
        """End all requests; the server goes on."""
        session, self._session = self._running, None
        session.desk.close()
        session.desk.fail(RuntimeError("engine 'openai' was closed"))
        await self._end(session, list(session.work))
        await session.client.close()
