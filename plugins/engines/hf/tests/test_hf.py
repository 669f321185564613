"""Cases that the suite does not cover: a cache that is too small, a model that fails, a process that ends early."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from astraflow_core.errors import EngineLost, UserError
from astraflow_core.types import GenerateRequest, Sampling, WeightSource
from astraflow_testing.conformance._models import qwen3
from astraflow_testing.conformance._models.engine_routing_tests import examine_routing
from astraflow_testing.conformance.subject import context, installed
from astraflow_tiny_model.folder import write_tiny_model

GIB = 1 << 30
PER_TOKEN = 2 * 2 * 2 * 8 * 4  # keys and values, layers, heads, their size, bytes


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "model", hidden=32, init_std=0.3, context=256)


def run(model: Path, scenario: Callable[[Any], Coroutine[Any, Any, None]], **keys: Any) -> None:
    async def main() -> None:
        table = {"device": "cpu", "cache_gb": 0.01, "page_size": 16, **keys}
        (build,) = installed("engine", "hf", table).variants.values()
        engine = build(context("engine", model.parent, seed=3))
        async with asyncio.timeout(40):
            await engine.start(model)
            try:
                await scenario(engine)
            finally:
                await engine.close()

    asyncio.run(main())


def request(number: int, tokens: int) -> GenerateRequest:
    prompt = np.array([5, 9, 2 + number], np.int32)
    return GenerateRequest(f"r{number}", prompt, Sampling(tokens, ignore_eos=True))


def examine(model: Path, sent: GenerateRequest, result: Any) -> None:
    """Against a forward pass of the whole sequence."""
    count = sent.sampling.max_tokens
    assert (len(result.tokens), result.finish_reason) == (count, "length")
    ids = np.concatenate([sent.prompt, result.tokens])
    logits = qwen3.logits(model, [(model / "model.safetensors", ids[:-1])])[len(sent.prompt) - 1 :]
    expected = qwen3.log_softmax(logits)[np.arange(count), result.tokens]
    np.testing.assert_allclose(result.logprobs, expected, atol=1e-4)


@pytest.mark.slow
def test_more_than_the_cache_holds_is_computed_anew_and_right(model: Path) -> None:
    async def scenario(engine: Any) -> None:
        assert engine.context_length == 160
        sent = [request(number, 120) for number in range(6)]
        results = await asyncio.gather(*(engine.generate(one) for one in sent))
        for one, result in zip(sent, results, strict=True):
            examine(model, one, result)

    run(model, scenario, cache_gb=160 * PER_TOKEN / GIB)


def test_prompts_that_take_several_steps_mix_with_requests_that_sample(model: Path) -> None:
    async def scenario(engine: Any) -> None:
        prompts = [np.arange(n, n + 20 + 7 * n, dtype=np.int32) % 25 + 2 for n in range(9)]
        sent = [
            GenerateRequest(f"r{n}", prompt, Sampling(6 + n, ignore_eos=True))
            for n, prompt in enumerate(prompts)
        ]
        results = await asyncio.gather(*(engine.generate(one) for one in sent))
        for one, result in zip(sent, results, strict=True):
            examine(model, one, result)

    run(model, scenario, max_batch_tokens=16)


def test_experts_are_recorded_where_prompts_take_several_steps_and_after_a_swap(
    tmp_path: Path,
) -> None:
    before = qwen3.write_expert_model(tmp_path / "experts", init_std=0.3)
    after = shutil.copytree(before, tmp_path / "other")
    held = load_file(before / "model.safetensors")
    # Other experts, which compute something else.
    turned = {name: -tensor if ".mlp." in name else tensor for name, tensor in held.items()}
    save_file(turned, after / "model.safetensors")

    async def scenario(engine: Any) -> None:
        for version, model in ((0, before), (1, after)):
            if version:
                await engine.pause("keep")
                file = model / "model.safetensors"
                await engine.load_weights(WeightSource("p", version, file, "", 0, 0.0))
                await engine.resume()
            sent = [
                GenerateRequest(
                    f"{version}.{n}",
                    np.arange(n, n + 20 + 7 * n, dtype=np.int32) % 25 + 2,
                    Sampling(6 + n, ignore_eos=True),
                    routing=n != 3,
                )
                for n in range(6)
            ]
            results = await asyncio.gather(*(engine.generate(one) for one in sent))
            for one, result in zip(sent, results, strict=True):
                if one.routing:
                    examine_routing(model, one, result)
                else:
                    assert result.routed_experts is None

    run(before, scenario, max_batch_tokens=16)


def test_experts_of_a_model_without_any_are_refused(model: Path) -> None:
    async def scenario(engine: Any) -> None:
        with pytest.raises(UserError, match="the model has no experts"):
            await engine.generate(replace(request(0, 3), routing=True))

    run(model, scenario)


def test_a_forward_pass_that_fails_ends_the_engine(model: Path) -> None:
    async def scenario(engine: Any) -> None:
        sent = asyncio.ensure_future(engine.generate(request(0, 200)))
        while (await engine.health())["tokens_generated"] < 5:
            await asyncio.sleep(0.002)

        def fails(*args: Any) -> None:
            raise RuntimeError("as the test wants it")

        engine._running.batching.model.lm_head.register_forward_pre_hook(fails)
        with pytest.raises(EngineLost, match="as the test wants it"):
            await sent
        for call in (engine.generate(request(1, 3)), engine.pause("keep"), engine.score(request(1, 3).prompt)):  # fmt: skip
            with pytest.raises(EngineLost, match="has ended"):
                await call
            await asyncio.sleep(0.05)

    run(model, scenario)


def test_weights_are_not_loaded_while_anything_may_be_computed(model: Path) -> None:
    async def scenario(engine: Any) -> None:
        source = WeightSource("solver", 1, model / "model.safetensors", "", 0, 0.0)
        with pytest.raises(RuntimeError, match="only while it is paused"):
            await engine.load_weights(source)

    run(model, scenario)


@pytest.mark.slow
def test_a_process_ends_though_its_engine_was_not_closed(model: Path) -> None:
    script = f"""
import asyncio
from pathlib import Path
from astraflow_testing.conformance.subject import context, installed
keys = {{"device": "cpu", "cache_gb": 0.01}}
(build,) = installed("engine", "hf", keys).variants.values()
model = Path({str(model)!r})
asyncio.run(build(context("engine", model.parent)).start(model))
raise SystemExit(3)
"""
    done = subprocess.run([sys.executable, "-c", script], timeout=50, check=False)
    assert done.returncode in (3, -6)  # torch may abort where a thread of its is still there
