"""Models with experts: new versions of them, and the experts that were chosen, of requests that join and leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, MixtralConfig, MixtralForCausalLM

from astraflow_core.errors import UserError, WeightsError
from astraflow_core.types import GenerateRequest, GenerateResult, Sampling, WeightSource
from astraflow_plugin_torch_engine.engine import TorchEngine
from astraflow_tiny_model.folder import write_tiny_model

Serve = Callable[..., AbstractAsyncContextManager[TorchEngine]]


@pytest.fixture(scope="module", params=["qwen3_moe", "mixtral"])
def kind(request: pytest.FixtureRequest) -> str:
    """An architecture with experts."""
    name: str = request.param
    return name


def as_mixtral(folder: Path, seed: int) -> Path:
    """Another model in the place of the one in ``folder``, whose tokenizer it has."""
    sizes = MixtralConfig(
        **json.loads((folder / "config.json").read_bytes())
        | {"model_type": "mixtral", "num_local_experts": 6, "intermediate_size": 16, "initializer_range": 0.3}
    )  # fmt: skip
    torch.manual_seed(seed)
    MixtralForCausalLM(sizes).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def versions(kind: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Folders of two models of one shape."""
    made = [
        write_tiny_model(
            tmp_path_factory.mktemp(f"seed-{seed}"),
            hidden=32,
            ffn=16,
            init_std=0.3,
            experts=6,
            seed=seed,
        )
        for seed in (0, 1)
    ]
    if kind == "mixtral":
        made = [as_mixtral(folder, seed) for seed, folder in enumerate(made)]
    return made[0], made[1]


def asked(name: str, tokens: int, *prompt: int, routing: bool = True) -> GenerateRequest:
    sampling = Sampling(tokens, temperature=0, ignore_eos=True)
    return GenerateRequest(name, np.array(prompt, np.int32), sampling, routing=routing)


def choices(folder: Path, tokens: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What the routers of transformers choose, sorted: ``[T, layers, top_k]``."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.from_numpy(tokens.astype(np.int64))[None]
    logits = model(input_ids=ids, output_router_logits=True).router_logits
    return np.stack([np.sort(each.topk(2).indices.numpy()) for each in logits], 1)


def source(path: Path, version: int) -> WeightSource:
    return WeightSource("p", version, path, "", 0, 0.0)


def test_a_version_takes_the_place_of_stacked_experts(
    versions: tuple[Path, Path], kind: str, serve: Serve, tmp_path: Path
) -> None:
    first, second = versions
    tensors = load_file(second / "model.safetensors")
    left_out = "model.layers.1.mlp.experts.4.up_proj.weight"
    if kind == "mixtral":
        left_out = "model.layers.1.block_sparse_moe.experts.4.w3.weight"
    save_file({n: t for n, t in tensors.items() if n != left_out}, tmp_path / "less.safetensors")

    async def main() -> list[GenerateResult]:
        async with serve(first) as engine:
            before = await engine.generate(asked("a", 9, 5, 9, 3))
            with pytest.raises(WeightsError, match=f"missing tensor '{left_out}'"):
                await engine.load_weights(source(tmp_path / "less.safetensors", 1))
            await engine.load_weights(source(second / "model.safetensors", 1))
            return [before, await engine.generate(asked("b", 9, 5, 9, 3))]

    for folder, result in zip(versions, asyncio.run(main()), strict=True):
        read = np.concatenate([[5, 9, 3], result.tokens[:-1]])
        assert result.routed_experts is not None
        assert np.array_equal(np.sort(result.routed_experts), choices(folder, read))


def test_rows_that_move_and_end_early_keep_their_experts(
    versions: tuple[Path, Path], serve: Serve
) -> None:
    async def main() -> list[tuple[GenerateRequest, GenerateResult]]:
        async with serve(versions[0], max_batch=3) as engine:
            requests = [
                asked(str(n), 3 + 11 * (n % 3), 5, 9, *range(2, 2 + n // 2), routing=n != 2)
                for n in range(7)
            ]
            endless = asked("endless", 120, 4, 4)
            running = [asyncio.create_task(engine.generate(r)) for r in [endless, *requests]]
            await running[3]
            await engine.abort(["endless"])
            return list(zip([endless, *requests], await asyncio.gather(*running), strict=True))

    for request, result in asyncio.run(main()):
        if not request.routing:
            assert result.routed_experts is None
            continue
        read = np.concatenate([request.prompt, result.tokens[:-1]])
        assert result.routed_experts is not None and result.routed_experts.dtype == np.uint8
        assert np.array_equal(np.sort(result.routed_experts), choices(versions[0], read))


def test_a_model_without_experts_has_none_to_record(folder: Path, serve: Serve) -> None:
    async def main() -> None:
        async with serve(folder) as engine:
            with pytest.raises(
                UserError, match=r"no experts, or its routers are not known.*Qwen3Moe"
            ):
                await engine.generate(asked("a", 3, 5, 9))
            assert len((await engine.generate(asked("b", 3, 5, routing=False))).tokens) == 3

    asyncio.run(main())
