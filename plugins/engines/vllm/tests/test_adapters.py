"""Adapters as versions, on a real vLLM server that was started for them, on a CPU or a GPU: compared with a float64
forward pass over weights into which the adapter was merged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file, save_file

from astraflow_core.errors import UserError, WeightsError, WrongVersion
from astraflow_core.types import GenerateRequest, GenerateResult, Sampling, WeightSource
from astraflow_plugin_vllm.config import VllmConfig
from astraflow_plugin_vllm.engine import VllmEngine
from astraflow_plugin_vllm.server import VllmServer
from astraflow_testing.conformance._models import qwen3
from astraflow_testing.conformance._models.engine_adapter_tests import EngineAdapterTests
from astraflow_testing.conformance.engine import EngineConformance, Subject, installed
from astraflow_testing.conformance.subject import context
from astraflow_wire.model_files.model_digest import digest_of_model

pytestmark = pytest.mark.timeout(2000)
WriteModel = Callable[..., Path]
PROMPT = np.array((5, 9, 3, 7), np.int32)
RANK, NAMED = 4, 2
ADAPTERS = pytest.mark.turns(
    "plugins/engines/vllm/src/**/*.py",
    "plugins/engines/vllm/tests/conftest.py",
    "libs/serving/src/**/*.py",
    "testing/src/astraflow_testing/conformance/_models/engine_adapter_tests.py",
    unit="vllm adapters",
)
KEYS: dict[str, dict[str, Any]] = {
    "cpu": {},
    # vLLM's kernels for adapters on GPUs take 16 bits only.
    "gpu": {"dtype": "bfloat16", "gpu_memory_utilization": 0.3},
}
GAPS = {"cpu": (1e-4, 1e-4), "gpu": (2.0, 0.2)}
"""Largest and mean error of log-probs; those of another version are off by more than 1 on average."""


@dataclass(frozen=True)
class Policy:
    """A base and versions made from it: ``merged`` is what each of them is in full, ``gaps`` how far off the
    engine may be."""

    folder: Path
    adapters: dict[int, Path]
    merged: dict[int, Path]
    gaps: tuple[float, float]

    def source(self, version: int, **changes: Any) -> WeightSource:
        known: dict[str, Any] = {
            "kind": "adapter", "base": digest_of_model([self.folder / "model.safetensors"]), **changes,
        }  # fmt: skip
        return WeightSource("p", version, self.adapters[version], "", 0, 0.0, **known)


def adapt(base: Path, folder: Path, version: int, rank: int = RANK, every: str = "_proj") -> Path:
    """An adapter file for every projection of ``base``, and beside it the merged weights."""
    random = np.random.default_rng(version)
    adapter: dict[str, Any] = {}
    merged = dict(load_file(base / "model.safetensors"))
    for name, weight in list(merged.items()):
        if f"{every}.weight" in name:
            module = f"base_model.model.{name.removesuffix('.weight')}"
            a = random.normal(0, 0.3, (rank, weight.shape[1])).astype(np.float32)
            b = random.normal(0, 0.3, (weight.shape[0], rank)).astype(np.float32)
            adapter |= {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}
            merged[name] = weight + b @ a
    save_file(adapter, folder / f"adapter-{version}.safetensors")
    save_file(merged, folder / f"merged-{version}.safetensors")
    return folder / f"adapter-{version}.safetensors"


def policy_of(base: Path, folder: Path, gaps: tuple[float, float]) -> Policy:
    versions = range(1, 4)
    folder.mkdir()
    adapters = {version: adapt(base, folder, version) for version in versions}
    merged = {version: folder / f"merged-{version}.safetensors" for version in versions}
    return Policy(base, adapters, {0: base / "model.safetensors", **merged}, gaps)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("cpu", marks=(pytest.mark.backend, ADAPTERS)),
        pytest.param("gpu", marks=pytest.mark.gpu),
    ],
)
def place(request: pytest.FixtureRequest) -> str:
    """Where the server computes."""
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def lora_server(
    place: str,
    environment: str,
    tmp_path_factory: pytest.TempPathFactory,
    write_model: WriteModel,
    kept: Callable[[VllmServer], Iterator[VllmServer]],
) -> Iterator[VllmServer]:
    folder = tmp_path_factory.mktemp("server")
    config = VllmConfig(
        max_batch=16, lora_rank=RANK, named_adapters=NAMED, start_deadline_s=580, **KEYS[place]
    )
    model, log = write_model(folder / "model"), folder / "vllm.log"
    yield from kept(VllmServer(config, model, log, 0, environment, cpu=place == "cpu"))


@pytest.fixture
def run(
    lora_server: VllmServer, place: str, tmp_path: Path, write_model: WriteModel
) -> Callable[..., None]:
    """``run(scenario)`` with an engine on that server, and its policy."""
    policy = policy_of(write_model(tmp_path / "model"), tmp_path / "versions", GAPS[place])

    def go(scenario: Callable[[VllmEngine, Policy], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            config = VllmConfig(
                url=lora_server.url, max_batch=16, lora_rank=RANK, named_adapters=NAMED
            )
            engine = VllmEngine(config, context("engine", tmp_path))
            async with asyncio.timeout(200):
                await engine.start(policy.folder)
                try:
                    await scenario(engine, policy)
                finally:
                    await engine.close()

        asyncio.run(main())

    return go


def request(name: str, tokens: int) -> GenerateRequest:
    return GenerateRequest(name, PROMPT, Sampling(tokens, ignore_eos=True))


def examine(policy: Policy, result: GenerateResult) -> None:
    """Each log-prob is that of the version which the token carries, over keys and values of those before."""
    fed = np.concatenate([PROMPT, result.tokens[:-1]])
    # Token i was computed with the weights of its version, from what was fed to it.
    versions = np.concatenate([np.full(len(PROMPT) - 1, result.versions[0]), result.versions])
    parts: list[tuple[Path, npt.NDArray[np.int32]]] = []
    for version in dict.fromkeys(versions.tolist()):
        parts.append((policy.merged[version], fed[versions == version].astype(np.int32)))
    logits = qwen3.logits(policy.folder, parts)[len(PROMPT) - 1 :]
    expected = qwen3.log_softmax(logits)[np.arange(len(result.tokens)), result.tokens]
    close(policy, result.logprobs, expected)


def close(policy: Policy, found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> None:
    gap = np.abs(found - expected)
    largest, mean = policy.gaps
    assert gap.max() <= largest and gap.mean() <= mean


async def swap(engine: VllmEngine, source: WeightSource) -> None:
    await engine.pause("keep")
    try:
        await engine.load_weights(source)
    finally:
        await engine.resume()


async def sampled(engine: VllmEngine, tokens: float) -> None:
    while (await engine.health())["tokens_generated"] < tokens:
        await asyncio.sleep(0.01)


def test_adapters_are_swapped_under_requests_in_flight(run: Callable[..., None]) -> None:
    async def scenario(engine: VllmEngine, policy: Policy) -> None:
        flying = [asyncio.ensure_future(engine.generate(request(f"r{n}", 900))) for n in range(4)]
        for version in (1, 2, 3):
            await sampled(engine, version * 40)
            await swap(engine, policy.source(version))
        await sampled(engine, 160)
        await engine.abort([f"r{n}" for n in range(4)])
        for result in await asyncio.gather(*flying):
            assert set(result.versions.tolist()) == {0, 1, 2, 3}
            examine(policy, result)
        fresh = await engine.generate(request("fresh", 16))
        assert set(fresh.versions.tolist()) == {3}
        examine(policy, fresh)
        whole = np.concatenate([PROMPT, fresh.tokens])
        scores = await engine.score(whole)
        close(policy, scores[len(PROMPT) :], fresh.logprobs)

    run(scenario)


def test_an_adapter_that_does_not_fit_leaves_the_one_before(
    run: Callable[..., None], tmp_path: Path
) -> None:
    async def scenario(engine: VllmEngine, policy: Policy) -> None:
        await swap(engine, policy.source(1))
        high = adapt(policy.folder, tmp_path, 9, rank=64)
        for source, said in (
            (policy.source(2, base="another"), "an adapter for the base another"),
            (WeightSource("p", 2, high, "", 0, 0.0, "adapter"), "rank 64, above lora_rank = 4"),
            (WeightSource("p", 2, policy.merged[1], "", 0, 0.0, "adapter"), "unknown tensor"),
        ):
            with pytest.raises(WeightsError, match=said):
                await swap(engine, source)
        result = await engine.generate(request("r", 12))
        assert set(result.versions.tolist()) == {1}
        examine(policy, result)

    run(scenario)


def test_a_whole_version_is_a_new_base_without_an_adapter(
    run: Callable[..., None], place: str, tmp_path: Path, write_model: WriteModel
) -> None:
    other = policy_of(write_model(tmp_path / "other", seed=1), tmp_path / "others", GAPS[place])

    async def scenario(engine: VllmEngine, policy: Policy) -> None:
        await swap(engine, policy.source(1))
        base = other.folder / "model.safetensors"
        await swap(engine, WeightSource("p", 4, base, digest_of_model([base]), 0, 0.0))
        result = await engine.generate(request("whole", 12))
        assert set(result.versions.tolist()) == {4}
        examine(replace(other, merged={4: base}), result)
        with pytest.raises(WeightsError, match="is loaded"):
            await swap(engine, policy.source(2))
        await swap(engine, other.source(3))
        adapted = await engine.generate(request("adapted", 12))
        assert set(adapted.versions.tolist()) == {3}
        examine(other, adapted)

    run(scenario)


class TestNamedAdapters(EngineAdapterTests):
    """What the suite demands of them, on that server; the rest of the suite runs on one without adapters."""

    tolerance, deadline_s = 1e-4, 120.0

    @pytest.fixture
    def component(self, lora_server: VllmServer, place: str) -> Subject:
        if place == "gpu":
            pytest.skip("16 bits are not compared with float64 so closely")
        keys = {"url": lora_server.url, "max_batch": 16, "lora_rank": RANK, "named_adapters": NAMED}
        return installed("engine", "vllm", keys)

    @pytest.fixture
    def model(self, tmp_path: Path, write_model: WriteModel) -> Path:
        return write_model(tmp_path / "model")

    @pytest.fixture
    def other(self, model: Path) -> Path:
        return model / "model.safetensors"

    run = EngineConformance.run
    reference = EngineConformance.reference
    examiner = EngineConformance.examiner


def test_named_adapters_come_and_go_in_the_places_of_others(
    run: Callable[..., None], place: str, tmp_path: Path
) -> None:
    """More of them than the server has places, beside versions without a name, which are never evicted; they end with a new base."""

    async def scenario(engine: VllmEngine, policy: Policy) -> None:
        for turn in range(2 * NAMED + 3):
            version = 1 + turn % 3
            await engine.load_adapter(f"slot-{turn % NAMED}", policy.source(version))
            named = replace(request(f"r{turn}", 6), adapter=f"slot-{turn % NAMED}")
            result = await engine.generate(named)
            assert set(result.versions.tolist()) == {version}
            examine(policy, result)
        plain = await engine.generate(request("plain", 6))
        assert set(plain.versions.tolist()) == {0}
        examine(policy, plain)
        with pytest.raises(UserError, match="as many as named_adapters allows"):
            await engine.load_adapter("more", policy.source(1))
        high = adapt(policy.folder, tmp_path, 9, rank=64)
        with pytest.raises(WeightsError, match="above lora_rank = 4"):
            await engine.load_adapter("slot-0", replace(policy.source(1), path=high))
        running = asyncio.create_task(
            engine.generate(replace(request("runs", 1500), adapter="slot-0"))
        )
        while not (await engine.health())["running"]:
            await asyncio.sleep(0.01)
        await swap(engine, policy.source(2))
        with pytest.raises(WrongVersion, match="the base of the adapter 'slot-0' was replaced"):
            await running
        with pytest.raises(WrongVersion, match="is not loaded; engine 'vllm' has none"):
            await engine.generate(replace(request("late", 2), adapter="slot-0"))
        result = await engine.generate(request("version", 6))
        assert set(result.versions.tolist()) == {2}
        examine(policy, result)

    run(scenario)
