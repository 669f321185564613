"""Versions on few engines: each is loaded once for all that wait for it, and none waits for ever."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tinker_cases import in_loop

from astraflow_contrib_tinker.work import sampling, slots
from astraflow_contrib_tinker.work.sampling import EnginePool, SampleWish, WeightsSnapshot
from astraflow_core.errors import EngineLost, Refused, UserError
from astraflow_core.types import GenerateRequest, GenerateResult, Sampling, WeightSource

WISH = SampleWish(np.array([1], np.int32), 1, Sampling(1), (), False)


class CountingEngine:
    """Answers with the version that it has, after some turns of the loop."""

    context_length = 8

    def __init__(self) -> None:
        self.version, self.at_once, self.most = 0, 0, 0
        self.loads: list[int] = []
        self.closed, self.lost = False, False
        self.adapters: dict[str, int] = {}
        self.running: Counter[str] = Counter()

    async def start(self, model: Path) -> None:
        if not model.is_dir():
            raise UserError("no model")

    async def pause(self, mode: str) -> None: ...
    async def resume(self) -> None: ...
    async def close(self) -> None:
        self.closed = True

    async def load_weights(self, source: WeightSource) -> None:
        if self.lost:
            raise EngineLost("its thread has failed")
        assert not self.at_once and not self.closed, "somebody samples, or it was closed"
        await asyncio.sleep(0)
        self.version = source.version
        self.loads.append(source.version)

    async def load_adapter(self, name: str, source: WeightSource | None) -> None:
        assert source is not None and source.base == "base" and not self.running[name]
        await asyncio.sleep(0)
        self.adapters[name] = source.version
        self.loads.append(source.version)

    def version_of(self, name: str) -> int:
        return self.adapters[name] if name else self.version

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        if self.lost:
            raise EngineLost("its thread has failed")
        assert not self.closed
        self.at_once += 1
        self.running[request.adapter] += 1
        self.most = max(self.most, self.at_once)
        version = self.version_of(request.adapter)
        try:
            await asyncio.sleep(0.001)
        finally:
            self.at_once -= 1
            self.running[request.adapter] -= 1
        assert version == self.version_of(request.adapter)
        one = np.array([version], np.int32)
        return GenerateResult(request.id, one, -np.ones(1, np.float32), one, "length")


@pytest.fixture
def most_adapters() -> int:
    return 2


@pytest.fixture
def engines() -> list[CountingEngine]:
    return []


@pytest.fixture
def pool(engines: list[CountingEngine], most_adapters: int) -> EnginePool:
    def build() -> CountingEngine:
        engines.append(CountingEngine())
        return engines[-1]

    base: Any = SimpleNamespace(
        build_engine=build, folder=Path(), tokenizer=lambda: None, config=SimpleNamespace(vocabulary=9),
        most_adapters=most_adapters, digest="base",
    )  # fmt: skip
    return EnginePool(base, 2, 2)


@pytest.fixture
def versions(tmp_path: Path) -> list[WeightsSnapshot]:
    (tmp_path / "model.safetensors").touch()
    return [WeightsSnapshot(number, tmp_path) for number in range(1, 9)]


@pytest.fixture
def adapters(tmp_path: Path) -> list[WeightsSnapshot]:
    folder = tmp_path / "adapted"
    folder.mkdir()
    (folder / "adapter_model.safetensors").touch()
    return [WeightsSnapshot(number, folder) for number in range(11, 17)]


async def version_of(pool: EnginePool, snapshot: WeightsSnapshot) -> int:
    return int((await pool.sample(snapshot, WISH)).sequences[0].tokens[0])


def test_a_version_is_loaded_once_for_all_that_wait_for_it(
    pool: EnginePool, engines: list[CountingEngine], versions: list[WeightsSnapshot]
) -> None:
    async def scenario() -> None:
        asked = [each for _ in range(20) for each in versions]  # of eight clients at once
        told = await asyncio.gather(*(version_of(pool, each) for each in asked))
        assert told == [each.version for each in asked]
        loads = [version for engine in engines for version in engine.loads]
        assert sorted(loads) == [each.version for each in versions] and len(engines) == 2
        assert max(engine.most for engine in engines) >= 20

    in_loop(scenario())


def test_no_version_waits_for_ever_behind_one_that_is_in_use(
    pool: EnginePool, versions: list[WeightsSnapshot], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "PATIENCE_S", 0.01)

    async def scenario() -> None:
        async def again_and_again(snapshot: WeightsSnapshot) -> None:
            while True:
                await version_of(pool, snapshot)

        busy = [asyncio.create_task(again_and_again(each)) for each in versions[:2] * 8]
        await asyncio.sleep(0.02)
        assert await version_of(pool, versions[2]) == 3
        for task in busy:
            task.cancel()
        await asyncio.gather(*busy, return_exceptions=True)
        for each in versions:  # those that were cancelled use no engine
            assert await version_of(pool, each) == each.version
        await pool.close()

    in_loop(scenario())


def test_adapters_share_one_engine_and_are_loaded_beside_what_runs(
    pool: EnginePool,
    engines: list[CountingEngine],
    versions: list[WeightsSnapshot],
    adapters: list[WeightsSnapshot],
) -> None:
    """Six on the two places of one engine, the base model in it too, and another engine for a whole version."""

    async def scenario() -> None:
        base = WeightsSnapshot(0, Path())
        asked = [each for _ in range(20) for each in (base, versions[0], *adapters)]
        told = await asyncio.gather(*(version_of(pool, each) for each in asked))
        assert told == [each.version for each in asked]
        shared, other = engines
        assert sorted(shared.loads) == [each.version for each in adapters] and shared.version == 0
        assert other.loads == [1] and len(shared.adapters) == 2

    in_loop(scenario())


@pytest.mark.parametrize("most_adapters", [0])
def test_an_adapter_needs_an_engine_that_serves_some(
    pool: EnginePool, adapters: list[WeightsSnapshot], engines: list[CountingEngine]
) -> None:
    async def scenario() -> None:
        with pytest.raises(Refused, match="samples from whole weights only"):
            await version_of(pool, adapters[0])
        (adapters[0].folder / "adapter_model.safetensors").unlink()
        with pytest.raises(Refused, match="weights of version 11 have been removed"):
            await version_of(pool, adapters[0])
        assert not engines

    in_loop(scenario())


def test_an_engine_that_does_not_start_again_is_replaced(
    pool: EnginePool, versions: list[WeightsSnapshot], engines: list[CountingEngine], tmp_path: Path
) -> None:
    """The base model comes back with a new engine; its folder is away meanwhile."""

    async def scenario() -> None:
        for each in versions[:2]:
            await version_of(pool, each)
        base: Any = pool._base
        there, base.folder = base.folder, tmp_path / "away"
        with pytest.raises(UserError, match="no model"):
            await version_of(pool, WeightsSnapshot(0, there))
        base.folder = there
        told = [await version_of(pool, each) for each in (versions[0], versions[1])]
        assert told == [1, 2] and await version_of(pool, WeightsSnapshot(0, there)) == 0

    in_loop(scenario())


@pytest.mark.parametrize("waited", [0, 1])
def test_another_engine_begins_in_the_place_of_one_that_is_lost(
    waited: int, pool: EnginePool, engines: list[CountingEngine], versions: list[WeightsSnapshot]
) -> None:
    """Lost while it samples, or while it loads another version, which is then the only one of two that is not in use."""

    async def scenario() -> None:
        for snapshot in versions[:2]:
            assert await version_of(pool, snapshot) == snapshot.version
        engines[0].lost = True
        asked = [versions[2 * waited]] * 3 + [versions[1]]
        told = await asyncio.gather(
            *(version_of(pool, each) for each in asked), return_exceptions=True
        )
        assert [type(each) for each in told[:3]] == [EngineLost] * 3 and told[3] == 2
        assert [engine.closed for engine in engines] == [True, False]
        for snapshot in versions:
            assert await version_of(pool, snapshot) == snapshot.version
        assert len(engines) == 3

    in_loop(scenario())


def test_an_invalid_request_keeps_the_error_of_its_engine(
    pool: EnginePool, engines: list[CountingEngine], versions: list[WeightsSnapshot]
) -> None:
    async def scenario() -> None:
        assert await version_of(pool, versions[0]) == 1

        async def refused(request: GenerateRequest) -> GenerateResult:
            raise ValueError(f"request {request.id!r}: top_k is odd")

        engines[0].generate = refused  # type: ignore[method-assign]
        with pytest.raises(ValueError, match="top_k is odd"):
            await version_of(pool, versions[0])

    in_loop(scenario())


def test_the_pool_ends_without_an_engine_that_does_not(
    pool: EnginePool,
    engines: list[CountingEngine],
    versions: list[WeightsSnapshot],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An engine that neither ends its sample nor exits."""
    monkeypatch.setattr(sampling, "CLOSE_S", 0.01)

    async def scenario() -> None:
        for snapshot in versions[:2]:
            assert await version_of(pool, snapshot) == snapshot.version
        begun = asyncio.Event()

        async def never(*given: Any) -> Any:
            begun.set()
            await asyncio.Event().wait()

        engines[0].generate = engines[0].close = never  # type: ignore[method-assign,assignment]
        sample = asyncio.create_task(version_of(pool, versions[0]))
        await begun.wait()
        sample.cancel()
        await pool.close()
        assert sample.cancelled() and engines[1].closed

    in_loop(scenario())
