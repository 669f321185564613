"""A policy switched between the engines ``vllm`` and ``torch`` has the same log-probs, on SmolLM2 and after each
swap under load: what a real vLLM server samples, the other engine scores with the same weights."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from astraflow_core.catalog import Catalog
from astraflow_core.config.environments import cache_folder
from astraflow_core.protocols.engine import Engine, PauseMode
from astraflow_core.types import GenerateRequest, GenerateResult, Sampling, WeightSource
from astraflow_plugin_vllm.config import VllmConfig
from astraflow_plugin_vllm.server import VllmServer
from astraflow_runtime.models.resolver import ModelResolver
from astraflow_testing.conformance.subject import context, installed

pytestmark = [
    pytest.mark.backend,
    pytest.mark.timeout(900),
    pytest.mark.turns(
        "plugins/engines/vllm/src/**/*.py",
        "plugins/engines/vllm/tests/conftest.py",
        "libs/serving/src/**/*.py",
        "plugins/engines/torch/src/**/*.py",
    ),
]
MODEL = "pypi:SmolLM2-135M-Instruct"
KEYS = {"max_batch": 40, "context_length": 256}
CALLERS, SWAPS = 32, 4
PROMPTS = [np.arange(start, start + 12, dtype=np.int32) for start in (100, 500)]
GAP = 1e-4
"""Largest that was measured in float32 on CPU: 5e-5."""


@pytest.fixture(scope="module")
def model() -> Path:
    hooks = ModelResolver(Catalog.discover())
    try:
        return hooks.resolve_model(MODEL, 0, cache_folder())
    except OSError as error:
        pytest.fail(f"{MODEL} cannot be fetched: {error}")


@pytest.fixture(scope="module")
def other(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Other weights, in the model's own dtype: its output norm, which every logit depends on, is scaled."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file, save_file

    tensors = load_file(model / "model.safetensors")
    norm = tensors["model.norm.weight"]
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(norm.shape, generator=generator) * 0.5 + 0.75
    tensors["model.norm.weight"] = (norm.float() * noise).to(norm.dtype)
    file = tmp_path_factory.mktemp("other") / "model.safetensors"
    save_file(tensors, file)
    return file


@pytest.fixture(scope="module")
def large_server(
    environment: str,
    model: Path,
    tmp_path_factory: pytest.TempPathFactory,
    kept: Callable[[VllmServer], Iterator[VllmServer]],
) -> Iterator[VllmServer]:
    log = tmp_path_factory.mktemp("server") / "vllm.log"
    yield from kept(VllmServer(VllmConfig(**KEYS), model, log, 0, environment, cpu=True))


async def sample(engine: Engine) -> list[GenerateResult]:
    sampling = Sampling(4, ignore_eos=True)
    calls = [engine.generate(GenerateRequest(f"p{n}", p, sampling)) for n, p in enumerate(PROMPTS)]
    return list(await asyncio.gather(*calls))


async def swap(engine: Engine, mode: PauseMode, version: int, file: Path) -> None:
    await engine.pause(mode)
    await engine.load_weights(WeightSource("p", version, file, "", 0, 0.0))
    await engine.resume()


async def gaps(engine: Engine, results: list[GenerateResult]) -> list[float]:
    """How far its scores are from the log-probs of what another one sampled."""
    found = []
    for prompt, result in zip(PROMPTS, results, strict=True):
        scores = await engine.score(np.concatenate([prompt, result.tokens]))
        found.append(float(np.abs(scores[len(prompt) :] - result.logprobs).max()))
    return found


async def swaps(vllm: Engine, torch_engine: Engine, files: list[Path]) -> None:
    """Bring in ``files`` as versions 1, 2 … while requests are in flight, and compare after each."""
    done, finished = asyncio.Event(), list[GenerateResult]()

    async def call(number: int) -> None:
        prompt, sampling = PROMPTS[number % len(PROMPTS)], Sampling(8 + number, ignore_eos=True)
        while not done.is_set():
            request = GenerateRequest(f"{number}.{len(finished)}", prompt, sampling)
            finished.append(await vllm.generate(request))
            assert len(finished[-1].tokens) == sampling.max_tokens

    assert max(await gaps(torch_engine, await sample(vllm))) <= GAP
    calls = [asyncio.ensure_future(call(number)) for number in range(CALLERS)]
    for version, file in enumerate(files, 1):
        reached = (await vllm.health())["tokens_generated"] + CALLERS
        while (await vllm.health())["tokens_generated"] < reached:
            await asyncio.sleep(0.02)
        await swap(vllm, "keep", version, file)
        after = await sample(vllm)
        assert {int(v) for result in after for v in result.versions} == {version}
        assert min(await gaps(torch_engine, after)) > 100 * GAP, "the swap changed nothing"
        await swap(torch_engine, "wait", version, file)
        assert max(await gaps(torch_engine, after)) <= GAP
    done.set()
    await asyncio.gather(*calls)
    assert all((np.diff(result.versions) >= 0).all() for result in finished)
    assert {int(v) for result in finished for v in result.versions} == set(range(len(files) + 1))
    mixed = [result for result in finished if len(set(result.versions.tolist())) > 1]
    assert len(mixed) > len(files), "too few requests were in flight during a swap"


def test_vllm_and_torch_agree_while_versions_are_swapped_under_32_requests(
    large_server: VllmServer, model: Path, other: Path, tmp_path: Path
) -> None:
    def engine(name: str, **keys: object) -> Engine:
        (build,) = installed("engine", name, {**KEYS, **keys}).variants.values()
        made: Engine = build(context("engine", tmp_path))
        return made

    async def main() -> None:
        vllm = engine("vllm", url=large_server.url)
        torch_engine = engine("torch", device="cpu", cache_gb=0.25)
        async with asyncio.timeout(600):
            await vllm.start(model)
            await torch_engine.start(model)
            try:
                await swaps(vllm, torch_engine, [other, model / "model.safetensors"] * (SWAPS // 2))
            finally:
                await torch_engine.close()
                await vllm.close()

    asyncio.run(main())
