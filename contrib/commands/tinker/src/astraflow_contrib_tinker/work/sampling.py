"""Engines that sample from versions of the weights: each from one at a time, and from several adapters of its base."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
import xxhash

from astraflow_contrib_tinker.wire.results import SampleResult
from astraflow_contrib_tinker.work.access import FairTurns
from astraflow_contrib_tinker.work.base import BaseModel
from astraflow_contrib_tinker.work.exported import ADAPTER
from astraflow_contrib_tinker.work.slots import VersionSlot, VersionSlots
from astraflow_core.errors import EngineLost, Refused
from astraflow_core.protocols.engine import Engine, ServesAdapters
from astraflow_core.types import GenerateRequest, GenerateResult, Sampling, WeightSource
from astraflow_serving.tokens import MOST_STOP_TOKENS

CLOSE_S = 5.0
"""For an engine to end; the server ends without one that does not."""
log = logging.getLogger(__name__)
MOST_AT_ONCE = 256
"""Requests that engines work on or that wait for one; others wait for their key's turn."""


@dataclass(frozen=True, slots=True)
class WeightsSnapshot:
    """Weights to sample from: a Hugging Face folder, or one with an adapter of PEFT, that stays as it is. Version 0 is the base
    model."""

    version: int
    folder: Path

    @property
    def whole(self) -> Path:
        """The file of all weights."""
        return self.folder / "model.safetensors"

    @property
    def adapter(self) -> Path:
        """The file of an adapter."""
        return self.folder / ADAPTER


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
    """An engine, and the slots for adapters of the base that is loaded in it, known by their names."""

    engine: Engine
    adapters: VersionSlots[str, WeightsSnapshot]


class EnginePool:
    """At most ``size`` engines, as :class:`VersionSlots` gives them out. All adapters are sampled in one that has the base model, at most
    ``adapters`` at once, or as many as it serves; others have the versions of models whose every weight is trained."""

    def __init__(self, base: BaseModel, size: int, adapters: int) -> None:
        self._base, self._adapters = base, adapters
        self._engines: VersionSlots[_Loaded, WeightsSnapshot] = VersionSlots(
            size, self._begin, self._load
        )
        self._numbers, self._turns = itertools.count(1), FairTurns(MOST_AT_ONCE)
        self._tokenizer = base.tokenizer()

    async def sample(self, snapshot: WeightsSnapshot, wish: SampleWish) -> SampleResult:
        """Sample from a version. An engine that is lost is given up, and the next request begins another one."""
        async with self._turns.turn(), self._engine(snapshot) as (engine, adapter):
            sampling = self._sampling(wish, engine)
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [
                        group.create_task(self._generate(engine, adapter, snapshot, wish, sampling))
                        for _ in range(wish.count)
                    ]
                    scores = None
                    if wish.prompt_logprobs:
                        scores = np.array(await _score(engine, adapter, wish.prompt), np.float32)
                        scores[0] = np.nan
            except ExceptionGroup as several:
                raise several.exceptions[0] from None
        return SampleResult([task.result() for task in tasks], scores)

    async def close(self) -> None:
        """End all engines, or those that end within ``CLOSE_S``."""
        await asyncio.gather(*map(_end, await self._engines.close()))

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
        self,
        engine: Engine,
        adapter: str,
        snapshot: WeightsSnapshot,
        wish: SampleWish,
        sampling: Sampling,
    ) -> GenerateResult:
        number = f"{next(self._numbers)}"
        request = GenerateRequest(number, wish.prompt, sampling, adapter=adapter)
        result = await engine.generate(request)
        if result.finish_reason == "abort":
            raise Refused(503, "the engine ended the request; send it again")
        wrong = set(result.versions.tolist()) - {snapshot.version}
        assert not wrong, f"tokens of versions {wrong}, expected {snapshot.version}"
        return cut_at(result, wish.stops, self._text)

    def _tokens_of(self, stop: str) -> tuple[int, ...]:
        """By which the engine ends most sequences early; :func:`cut_at` finds the others."""
        try:
            ids = self._tokenizer.encode(stop, add_special_tokens=False).ids
        except Exception as error:  # the tokenizers package has no error class of its own
            raise Refused(400, f"stop {stop[:80]!r}: the tokenizer refuses it: {error}") from error
        if len(ids) > MOST_STOP_TOKENS:
            return ()
        return tuple(ids) if self._text(np.array(ids, np.int32)) == stop else ()

    def _text(self, tokens: npt.NDArray[np.int32]) -> str:
        return str(self._tokenizer.decode(tokens.tolist(), skip_special_tokens=False))

    @contextlib.asynccontextmanager
    async def _engine(self, snapshot: WeightsSnapshot) -> AsyncIterator[tuple[Engine, str]]:
        """An engine, and the name of the adapter to sample with in it, empty for none."""
        adapted = snapshot.version and snapshot.adapter.is_file()
        if snapshot.version and not adapted and not snapshot.whole.is_file():
            raise Refused(404, f"the weights of version {snapshot.version} have been removed")
        if adapted and not self._base.most_adapters:
            raise Refused(
                400,
                "an adapter was saved there, and the engine of this server samples from whole weights only: load the state that "
                "it was saved with, and save it again",
            )
        whole = WeightsSnapshot(0, self._base.folder) if adapted else snapshot
        using = self._engines.using(whole.version, whole)
        async with using as loaded, self._unless_lost(loaded):
            if not adapted:
                yield loaded.engine, ""
                return
            async with loaded.adapters.using(snapshot.version, snapshot) as name:
                yield loaded.engine, name

    @contextlib.asynccontextmanager
    async def _unless_lost(self, loaded: _Loaded) -> AsyncIterator[None]:
        """Give an engine up that is lost within the ``with`` block: another one begins in its place."""
        try:
            yield
        except EngineLost:
            if self._engines.give_up(loaded):
                await _end(loaded)
            raise

    async def _begin(self) -> VersionSlot[_Loaded]:
        engine = self._base.build_engine()
        await engine.start(self._base.folder)
        return VersionSlot(_Loaded(engine, self._adapters_of(engine)), 0)

    async def _load(self, slot: VersionSlot[_Loaded], snapshot: WeightsSnapshot) -> None:
        loaded = slot.value
        if not snapshot.version:  # the files of a base model need not be one
            try:
                await loaded.engine.close()
                slot.value = (await self._begin()).value
            except BaseException:
                self._engines.remove(slot)
                raise
            return
        digest = await asyncio.to_thread(_digest, snapshot.whole)
        source = WeightSource("tinker", snapshot.version, snapshot.whole, digest, 0, 0.0)
        async with self._unless_lost(loaded):
            await loaded.engine.pause("wait")
            try:
                await loaded.engine.load_weights(source)
            finally:
                await loaded.engine.resume()

    def _adapters_of(self, engine: Engine) -> VersionSlots[str, WeightsSnapshot]:
        names, serving = itertools.count(1), cast(ServesAdapters, engine)

        async def begin() -> VersionSlot[str]:
            return VersionSlot(f"slot-{next(names)}", -1)

        async def load(slot: VersionSlot[str], snapshot: WeightsSnapshot) -> None:
            base = await asyncio.to_thread(lambda: self._base.digest)
            source = WeightSource(
                "tinker", snapshot.version, snapshot.adapter, "", 0, 0.0, "adapter", base
            )
            await serving.load_adapter(slot.value, source)

        return VersionSlots(min(self._adapters, self._base.most_adapters), begin, load)


async def _end(loaded: _Loaded) -> None:
    try:
        async with asyncio.timeout(CLOSE_S):
            await loaded.adapters.close()
            await loaded.engine.close()
    except TimeoutError:
        log.warning("an engine did not end within %.0f s; it is left as it is", CLOSE_S)


async def _score(
    engine: Engine, adapter: str, tokens: npt.NDArray[np.int32]
) -> npt.NDArray[np.float32]:
    if not adapter:
        return await engine.score(tokens)
    return await cast(ServesAdapters, engine).score_adapter(adapter, tokens)


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
