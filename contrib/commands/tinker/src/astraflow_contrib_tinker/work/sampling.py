"""Engines that sample from versions of the weights, each from one at a time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from astraflow_contrib_tinker.wire.results import SampleResult
from astraflow_contrib_tinker.work.access import FairTurns
from astraflow_contrib_tinker.work.base import BaseModel
from astraflow_core.errors import AstraFlowError, Refused
from astraflow_core.protocols.engine import Engine
from astraflow_core.types import GenerateRequest, GenerateResult, Sampling, WeightSource

MOST_AT_ONCE = 256
"""Requests that engines work on or that wait for one; others wait for their key's turn."""


PATIENCE_S = 1.0
"""How long requests for a version that an engine has go ahead of those for another one."""


@dataclass(frozen=True, slots=True)
class WeightsSnapshot:
    """Weights to sample from: a Hugging Face folder that stays as it is. Version 0 is the base model."""

    version: int
    folder: Path


@dataclass(frozen=True, slots=True)
class SampleWish:
    """What a client asks for. ``stops`` are texts; what is sampled ends with the token that completes one."""

    prompt: npt.NDArray[np.int32]
    count: int
    sampling: Sampling
    stops: tuple[str, ...]
    prompt_logprobs: bool


@dataclass
class _Loaded:
    engine: Engine
    version: int
    users: int = 0
    used: int = 0
    loading: bool = False


@dataclass
class _Coming:
    """A version that no engine has yet, since when it is waited for, and by how many requests."""

    since: float
    wanted: int = 0
    task: asyncio.Future[_Loaded] | None = None


class EnginePool:
    """At most ``size`` engines. A request waits for one that has its version, or that nobody uses: that one loads it, for all
    requests that wait for the same version. Versions are loaded in the order in which they were first asked for, and once one is
    waited for longer than ``PATIENCE_S``, no request goes ahead of it, so that none waits for ever."""

    def __init__(self, base: BaseModel, size: int) -> None:
        self._base, self._size = base, size
        self._engines: list[_Loaded] = []
        self._coming: dict[int, _Coming] = {}
        self._turn, self._changed = asyncio.Lock(), asyncio.Condition()
        self._uses, self._turns = itertools.count(1), FairTurns(MOST_AT_ONCE)
        self._tokenizer = base.tokenizer()

    async def sample(self, snapshot: WeightsSnapshot, wish: SampleWish) -> SampleResult:
        """Sample from a version."""
        async with self._turns.turn(), self._engine(snapshot) as engine:
            sampling = self._sampling(wish, engine)
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [
                        group.create_task(self._generate(engine, snapshot, wish, sampling))
                        for _ in range(wish.count)
                    ]
                    scores = None
                    if wish.prompt_logprobs:
                        scores = np.array(await engine.score(wish.prompt), np.float32)
                        scores[0] = np.nan
            except* AstraFlowError as several:
                raise several.exceptions[0] from None
        return SampleResult([task.result() for task in tasks], scores)

    async def close(self) -> None:
        """End all engines."""
        tasks = [each.task for each in self._coming.values() if each.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        engines, self._engines = self._engines, []
        for loaded in engines:
            await loaded.engine.close()

    def _sampling(self, wish: SampleWish, engine: Engine) -> Sampling:
        """What the engine is asked for; :class:`Refused` if it cannot be."""
        length, most = len(wish.prompt), engine.context_length
        if not length:
            raise Refused(400, "the prompt is empty")
        if int(wish.prompt.max()) >= self._base.config.vocabulary:
            raise Refused(
                400,
                f"the prompt has a token outside the vocabulary of {self._base.config.vocabulary}",
            )
        if length + max(wish.sampling.max_tokens, 1) > most:
            raise Refused(
                400,
                f"a prompt of {length} tokens and max_tokens {wish.sampling.max_tokens} are more than the {most} tokens "
                "of the context",
            )
        return replace(
            wish.sampling,
            max_tokens=wish.sampling.max_tokens or most - length,
            stop_sequences=tuple(filter(None, map(self._tokens_of, wish.stops))),
        )

    async def _generate(
        self, engine: Engine, snapshot: WeightsSnapshot, wish: SampleWish, sampling: Sampling
    ) -> GenerateResult:
        request = GenerateRequest(f"{next(self._uses)}", wish.prompt, sampling)
        result = await engine.generate(request)
        if result.finish_reason == "abort":
            raise Refused(503, "the engine ended the request; send it again")
        wrong = set(result.versions.tolist()) - {snapshot.version}
        assert not wrong, f"versions {wrong} where {snapshot.version} was asked for"
        return cut_at(result, wish.stops, self._text)

    def _tokens_of(self, stop: str) -> tuple[int, ...]:
        """By which the engine ends most sequences early; :func:`cut_at` finds the others."""
        try:
            ids = self._tokenizer.encode(stop, add_special_tokens=False).ids
        except Exception as error:  # the tokenizers package has no class of its own
            raise Refused(400, f"stop {stop[:80]!r}: the tokenizer refuses it: {error}") from error
        return tuple(ids) if self._text(np.array(ids, np.int32)) == stop else ()

    def _text(self, tokens: npt.NDArray[np.int32]) -> str:
        return str(self._tokenizer.decode(tokens.tolist(), skip_special_tokens=False))

    @contextlib.asynccontextmanager
    async def _engine(self, snapshot: WeightsSnapshot) -> AsyncIterator[Engine]:
        loaded = self._at_hand(snapshot) or await self._brought(snapshot)
        try:
            yield loaded.engine
        finally:
            await self._leave(loaded)

    def _at_hand(self, snapshot: WeightsSnapshot) -> _Loaded | None:
        """An engine that has the version, now used; ``None`` also if others have waited for one for too long."""
        oldest = min((each.since for each in self._coming.values()), default=math.inf)
        if time.monotonic() - oldest > PATIENCE_S:
            return None
        for loaded in self._engines:
            if loaded.version == snapshot.version and not loaded.loading:
                return self._use(loaded, 1)
        return None

    async def _brought(self, snapshot: WeightsSnapshot) -> _Loaded:
        """An engine that will have the version, used: all that wait for it meanwhile get it at once."""
        coming = self._coming.get(snapshot.version)
        if coming is None:
            coming = self._coming[snapshot.version] = _Coming(time.monotonic())
            coming.task = asyncio.ensure_future(self._bring(snapshot, coming))
        task = coming.task
        assert task is not None
        coming.wanted += 1
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            coming.wanted -= 1
            if task.done() and not task.cancelled() and task.exception() is None:
                await self._leave(task.result())  # it was counted among the users
            raise

    async def _bring(self, snapshot: WeightsSnapshot, coming: _Coming) -> _Loaded:
        try:
            async with self._turn:
                loaded = await self._with_version(snapshot)
                return self._use(loaded, coming.wanted)
        finally:
            del self._coming[snapshot.version]

    async def _leave(self, loaded: _Loaded) -> None:
        loaded.users -= 1
        async with self._changed:
            self._changed.notify_all()

    def _use(self, loaded: _Loaded, users: int) -> _Loaded:
        loaded.users += users
        loaded.used = next(self._uses)
        return loaded

    async def _with_version(self, snapshot: WeightsSnapshot) -> _Loaded:
        for loaded in self._engines:
            if loaded.version == snapshot.version:
                return loaded
        if len(self._engines) < self._size:
            engine = self._base.build_engine()
            await engine.start(self._base.folder)
            loaded = _Loaded(engine, 0)
            self._engines.append(loaded)
        else:
            async with self._changed:
                await self._changed.wait_for(lambda: any(not e.users for e in self._engines))
            loaded = min((e for e in self._engines if not e.users), key=lambda e: e.used)
        if loaded.version != snapshot.version:
            loaded.loading = True
            try:
                await self._load(loaded, snapshot)
            finally:
                loaded.loading = False
        return loaded

    async def _load(self, loaded: _Loaded, snapshot: WeightsSnapshot) -> None:
        if not snapshot.version:  # the files of a base model need not be one
            self._engines.remove(loaded)
            await loaded.engine.close()
            loaded.engine, loaded.version = self._base.build_engine(), 0
            await loaded.engine.start(self._base.folder)
            self._engines.append(loaded)
            return
        file = snapshot.folder / "model.safetensors"
        if not file.is_file():
            raise Refused(404, f"the weights of version {snapshot.version} have been removed")
        digest = await asyncio.to_thread(_digest, file)
        source = WeightSource("tinker", snapshot.version, file, digest, 0, 0.0)
        await loaded.engine.pause("wait")
        try:
            await loaded.engine.load_weights(source)
            loaded.version = snapshot.version
        finally:
            await loaded.engine.resume()


def cut_at(
    result: GenerateResult,
    stops: tuple[str, ...],
    text: Callable[[npt.NDArray[np.int32]], str],
) -> GenerateResult:
    """The result up to the token that completes the first of ``stops``; ``text`` decodes tokens."""
    if not stops or not any(stop in text(result.tokens) for stop in stops):
        return result
    low, high = 1, len(result.tokens)
    while low < high:  # the fewest tokens whose text has one of them
        middle = (low + high) // 2
        if any(stop in text(result.tokens[:middle]) for stop in stops):
            high = middle
        else:
            low = middle + 1
    return GenerateResult(
        result.id, result.tokens[:low], result.logprobs[:low], result.versions[:low], "stop"
    )


def _digest(file: Path) -> str:
    digest = xxhash.xxh3_128()
    with file.open("rb") as opened:
        while block := opened.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()
