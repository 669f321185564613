"""With ``live_adapters`` a request finishes on the version with which it began."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from adapter_cases import TOKENS, adapt, reference
from pydantic import ValidationError
from safetensors.torch import load_file

from astraflow_core.errors import WeightsError, WrongVersion
from astraflow_core.types import GenerateRequest, GenerateResult, Sampling, WeightSource
from astraflow_plugin_torch_engine.config import TorchEngineConfig
from astraflow_plugin_torch_engine.engine import TorchEngine
from astraflow_plugin_torch_engine.loop import DecodeLoop
from astraflow_plugin_torch_engine.speculation.lengths import DraftLengths
from astraflow_wire.model_files.model_digest import digest_of_model

Serve = Callable[..., Any]
PROMPT = np.array([5, 9, 3], np.int32)
PACE = 4


class Paced:
    """An engine that pauses itself after every few steps, so that what a test does comes between two known ones."""

    def __init__(self, engine: TorchEngine) -> None:
        self.engine = engine
        self.results: dict[str, asyncio.Task[GenerateResult]] = {}

    async def begin(self, name: str, **keys: Any) -> None:
        """Ask for a long answer, which begins after this pause."""
        await self.engine.pause("keep")
        request = GenerateRequest(name, PROMPT, Sampling(60, ignore_eos=True))
        before = (await self.engine.health())["waiting"]
        self.results[name] = asyncio.create_task(self.engine.generate(replace(request, **keys)))
        async with asyncio.timeout(30):
            while (await self.engine.health())["waiting"] == before:
                await asyncio.sleep(0)

    async def some_steps(self) -> None:
        """Go on until the next pause."""
        before = (await self.engine.health())["steps"]
        await self.engine.resume()
        async with asyncio.timeout(30):
            while (await self.engine.health())["steps"] < before + PACE:
                await asyncio.sleep(0)
        await self.engine.pause("keep")

    async def swap(self, source: WeightSource) -> None:
        await self.engine.load_weights(source)
        assert (await self.engine.health())["version"] == source.version

    async def live(self) -> float:
        return (await self.engine.health())["live_versions"]

    async def finish(self) -> dict[str, Any]:
        """Every result or error."""
        names = list(self.results)
        waiting = asyncio.gather(*self.results.values(), return_exceptions=True)
        while not waiting.done():
            await self.engine.resume()
            await asyncio.sleep(0.001)
        return dict(zip(names, await waiting, strict=True))


@pytest.fixture(autouse=True)
def _paced(monkeypatch: pytest.MonkeyPatch) -> None:
    step = DecodeLoop._step

    def paced(self: DecodeLoop) -> None:
        step(self)
        if self.counters["steps"] % PACE == 0:
            self._mode = "keep"

    monkeypatch.setattr(DecodeLoop, "_step", paced)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every draft is verified."""
    monkeypatch.setattr(DraftLengths, "choose", lambda self, kind, lengths: lengths)


def versions(result: GenerateResult) -> list[int]:
    """In the order in which they sampled."""
    return list(dict.fromkeys(result.versions.tolist()))


def sampled_by(folder: Path, merged: dict[str, torch.Tensor], result: GenerateResult) -> None:
    """All its tokens, by the weights that an adapter makes when it is merged."""
    expected = reference(folder, merged, np.concatenate([PROMPT, result.tokens]))
    np.testing.assert_allclose(result.logprobs, expected[len(PROMPT) :], atol=1e-4)


@pytest.mark.parametrize("speculation", ["none", "history"])
def test_a_request_finishes_on_its_version(
    folder: Path, tmp_path: Path, serve: Serve, always: None, speculation: str
) -> None:
    made = {number: adapt(folder, tmp_path, number, part) for number, part in ((1, ""), (2, "mlp"))}
    merged = {0: load_file(folder / "model.safetensors")} | {n: m for n, (_, m) in made.items()}

    async def main() -> dict[str, Any]:
        async with serve(folder, live_adapters=3, speculation=speculation) as engine:
            paced = Paced(engine)
            for number in merged:
                if number:
                    await paced.swap(made[number][0])
                for copy in "ab":
                    await paced.begin(f"{number}{copy}")
                await paced.some_steps()
                np.testing.assert_allclose(
                    await engine.score(TOKENS), reference(folder, merged[number]), atol=1e-4
                )
            assert await paced.live() == 3
            found = await paced.finish()
            assert await paced.live() == 1
            health = await engine.health()
            assert (health.get("drafted_tokens", 0) > 0) == (speculation == "history")
            return found

    for name, result in asyncio.run(main()).items():
        assert versions(result) == [int(name[0])]
        assert len(result.tokens) == 60
        sampled_by(folder, merged[int(name[0])], result)


def test_the_oldest_continue_on_the_newest(folder: Path, tmp_path: Path, serve: Serve) -> None:
    made = {number: adapt(folder, tmp_path, number, "") for number in (1, 2, 3)}

    async def main() -> dict[str, Any]:
        async with serve(folder, live_adapters=2) as engine:
            paced = Paced(engine)
            await paced.begin("on 0")
            await paced.begin("pinned to 0", pinned_version=0)
            await paced.some_steps()
            await paced.swap(made[1][0])
            await paced.begin("on 1")
            await paced.begin("pinned to 1", pinned_version=1)
            await paced.begin("late", pinned_version=0)
            await paced.some_steps()
            await paced.swap(made[2][0])
            assert await paced.live() == 2
            assert len(engine._loop.named._loaded) == 2
            await engine.abort(["on 1", "pinned to 1"])
            assert await paced.live() == 1
            assert len(engine._loop.named._loaded) == 1
            await paced.some_steps()
            await paced.swap(made[3][0])
            await paced.begin("on 3")
            return await paced.finish()

    found = asyncio.run(main())
    assert versions(found["on 0"]) == [0, 2]
    assert isinstance(found["pinned to 0"], WrongVersion)
    assert isinstance(found["late"], WrongVersion)
    for name in ("on 1", "pinned to 1"):
        assert found[name].finish_reason == "abort"
        assert versions(found[name]) == [1]
        sampled_by(folder, made[1][1], found[name])
    assert versions(found["on 3"]) == [3]
    sampled_by(folder, made[3][1], found["on 3"])


def test_a_whole_version_is_the_one_of_all(
    folder: Path, other: Path, tmp_path: Path, serve: Serve
) -> None:
    first, second = adapt(folder, tmp_path, 1, ""), adapt(folder, tmp_path, 2, "mlp")
    on_other = adapt(other, tmp_path, 4, "self_attn")
    file = other / "model.safetensors"
    whole = WeightSource("p", 3, file, digest_of_model([file]), 0, 0.0)

    async def main() -> dict[str, Any]:
        async with serve(folder, live_adapters=4) as engine:
            paced = Paced(engine)
            for source in (first[0], second[0]):
                await paced.swap(source)
                await paced.begin(f"on {source.version}")
                await paced.some_steps()
            await paced.swap(whole)
            assert await paced.live() == 1
            assert not engine._loop.named._loaded
            np.testing.assert_allclose(
                await engine.score(TOKENS), reference(other, load_file(file)), atol=1e-4
            )
            await paced.begin("on 3")
            await paced.some_steps()
            with pytest.raises(WeightsError, match="is loaded"):
                await engine.load_weights(first[0])
            assert (await engine.health())["version"] == 3
            await paced.swap(on_other[0])
            await paced.begin("on 4")
            return await paced.finish()

    found = asyncio.run(main())
    assert [versions(found[f"on {n}"]) for n in (1, 2, 3, 4)] == [[1, 3], [2, 3], [3], [4]]
    sampled_by(other, load_file(file), found["on 3"])
    sampled_by(other, on_other[1], found["on 4"])


def test_adapters_that_requests_name_lie_beside_the_versions(
    folder: Path, tmp_path: Path, serve: Serve
) -> None:
    made = {number: adapt(folder, tmp_path, number, "") for number in (1, 2, 7)}

    async def main() -> dict[str, Any]:
        async with serve(folder, live_adapters=2) as engine:
            paced = Paced(engine)
            await engine.load_adapter("a", made[7][0])
            await paced.begin("lost", adapter="a")
            await paced.some_steps()
            for number in (1, 2):
                await paced.swap(made[number][0])
                with pytest.raises(WrongVersion, match="engine 'torch' has none"):
                    await engine.score_adapter("a", TOKENS)
                await engine.load_adapter("a", made[7][0])
                await paced.begin(f"on {number}")
                await paced.some_steps()
            await paced.begin("on 7", adapter="a")
            await paced.some_steps()
            assert await paced.live() == 2
            return await paced.finish()

    found = asyncio.run(main())
    assert isinstance(found["lost"], WrongVersion)
    for number in (1, 2, 7):
        assert versions(found[f"on {number}"]) == [number]
        sampled_by(folder, made[number][1], found[f"on {number}"])


def test_merged_adapters_only_with_batch_invariant() -> None:
    with pytest.raises(ValidationError, match="batch_invariant needs live_adapters = 0"):
        TorchEngineConfig(batch_invariant=True, live_adapters=2)
