"""Adapters by name: what one of them does to requests with another, and how they end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from astraflow_core.errors import RunFailed, UserError, WeightsError, WrongVersion
from astraflow_core.types import GenerateRequest, Sampling, WeightSource
from astraflow_plugin_torch_engine.engine import TorchEngine
from astraflow_wire.model_files.model_digest import digest_of_model

PROMPT = np.array([5, 9, 3], np.int32)


def adapter(
    folder: Path, target: Path, version: int, scale: float, changed: str = "q_proj.weight"
) -> WeightSource:
    weights = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(version)
    factors = {}
    for name, weight in weights.items():
        if name.endswith(changed):
            module = f"base_model.model.{name.removesuffix('.weight')}"
            factors[f"{module}.lora_A.weight"] = torch.randn(
                2, weight.shape[1], generator=generator
            )
            factors[f"{module}.lora_B.weight"] = torch.full((weight.shape[0], 2), scale)
    path = target / f"{version}.safetensors"
    save_file(factors, path)
    base = digest_of_model([folder / "model.safetensors"])
    return WeightSource("p", version, path, "", 0, 0.0, "adapter", base)


def asked(name: str, tokens: int = 12, prompt: np.ndarray = PROMPT) -> GenerateRequest:
    return GenerateRequest(
        name, prompt, Sampling(tokens, temperature=0, ignore_eos=True), adapter=name
    )


def test_an_adapter_that_diverged_fails_its_own_requests_only(
    folder: Path, tmp_path: Path, serve: Callable[..., Any]
) -> None:
    async def main() -> None:
        async with serve(folder) as engine:
            await engine.load_adapter("good", adapter(folder, tmp_path, 1, 0.1))
            alone = (await engine.generate(asked("good"))).tokens
            await engine.load_adapter("bad", adapter(folder, tmp_path, 2, 3e38))
            outcomes: list[Any] = await asyncio.gather(
                *(engine.generate(asked(name)) for name in ("good", "bad", "")),
                return_exceptions=True,
            )
            good, bad, base = outcomes
            assert good.tokens.tolist() == alone.tolist()
            assert isinstance(bad, RunFailed) and "logits of version 2 are not finite" in str(bad)
            assert set(base.versions.tolist()) == {0}
            assert (await engine.health())["running"] == 0

    asyncio.run(main())


def test_what_a_diverged_adapter_leaves_in_the_cache_is_in_no_later_request(
    folder: Path, tmp_path: Path, serve: Callable[..., Any]
) -> None:
    """Not numbers among hidden keys and values make a row NaN that reads them with weight 0."""
    long = np.arange(2, 34, dtype=np.int32) % 30

    async def main() -> None:
        async with serve(folder) as engine:
            await engine.load_adapter("good", adapter(folder, tmp_path, 1, 0.1))
            alone = (await engine.generate(asked("good"))).tokens
            await engine.load_adapter("bad", adapter(folder, tmp_path, 2, 3e38, "v_proj.weight"))
            for _ in range(2):
                ended = asyncio.gather(
                    *(engine.generate(asked("bad", prompt=long[number:])) for number in range(3)),
                    return_exceptions=True,
                )
                found = await asyncio.gather(*(engine.generate(asked("good")) for _ in range(3)))
                assert all(isinstance(each, RunFailed) for each in await ended)
                wide, *later = await asyncio.gather(
                    engine.generate(asked("", 30, long)),
                    *(engine.generate(asked("good")) for _ in range(3)),
                )
                assert np.isfinite(wide.logprobs).all()
                for each in (*found, *later):
                    assert each.tokens.tolist() == alone.tolist()

    asyncio.run(main())


def test_they_end_with_their_base(
    folder: Path, other: Path, tmp_path: Path, serve: Callable[..., Any]
) -> None:
    async def main() -> None:
        async with serve(folder) as engine:
            await engine.load_adapter("a", adapter(folder, tmp_path, 1, 0.1))
            running = asyncio.create_task(engine.generate(asked("a", 80)))
            await until_running(engine)
            await engine.pause("keep")
            await engine.load_weights(adapter(folder, tmp_path, 2, 0.1))  # merged
            await engine.resume()
            with pytest.raises(WrongVersion, match="'a' is not loaded; engine 'torch' has none"):
                await running
            with pytest.raises(WeightsError, match="one is merged into that"):
                await engine.load_adapter("a", adapter(folder, tmp_path, 1, 0.1))
            whole = other / "model.safetensors"
            await engine.pause("keep")
            await engine.load_weights(WeightSource("p", 3, whole, digest_of_model([whole]), 0, 0.0))
            await engine.resume()
            await engine.load_adapter("a", adapter(other, tmp_path, 4, 0.1))
            assert set((await engine.generate(asked("a"))).versions.tolist()) == {4}

    asyncio.run(main())


def test_what_cannot_be_served_is_refused(
    folder: Path, tmp_path: Path, serve: Callable[..., Any]
) -> None:
    async def main() -> None:
        async with serve(folder) as engine:
            with pytest.raises(WeightsError, match="is not finite"):
                await engine.load_adapter("a", adapter(folder, tmp_path, 1, float("nan")))
            for number in range(engine.most_adapters):
                await engine.load_adapter(str(number), adapter(folder, tmp_path, 2, 0.1))
            with pytest.raises(UserError, match="has 64 adapters, as many as it may"):
                await engine.load_adapter("more", adapter(folder, tmp_path, 2, 0.1))
            await engine.load_adapter("7", None)
            await engine.load_adapter("more", adapter(folder, tmp_path, 2, 0.1))
        async with serve(folder, batch_invariant=True) as engine:
            assert engine.most_adapters == 0
            with pytest.raises(UserError, match="batch_invariant = true: leave it out"):
                await engine.load_adapter("a", adapter(folder, tmp_path, 1, 0.1))

    asyncio.run(main())


async def until_running(engine: TorchEngine) -> None:
    async with asyncio.timeout(20):
        while not (await engine.health())["running"]:
            await asyncio.sleep(0)
