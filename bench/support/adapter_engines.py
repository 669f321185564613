"""Eight LoRA models of one base that are sampled at once, in a process of its own: ``python -m bench.support.adapter_engines MODE ROUNDS``.

``shared``: their adapters in one engine. ``engines``: an engine with merged weights for each. ``swaps``: two engines, each with
one version at a time. Prints the tokens of each second and CPU second, and the most memory that the process had.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import load_file, save_file

from astraflow_contrib_tinker.serving import served_model
from astraflow_contrib_tinker.work.base import BaseModel
from astraflow_contrib_tinker.work.exported import ADAPTER
from astraflow_contrib_tinker.work.sampling import EnginePool, SampleWish, WeightsSnapshot
from astraflow_core.types import Sampling
from astraflow_serving.model_folder import ModelConfig
from astraflow_tiny_model.folder import write_tiny_model

MODELS, RANK = 8, 16
SAMPLES, TOKENS = 8, 48
ENGINES = {"shared": 1, "engines": MODELS, "swaps": 2}


def main(mode: str, rounds: int) -> None:
    """Print what was measured."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = write_tiny_model(
            folder / "model", hidden=512, layers=6, heads=8, kv_heads=4, head_dim=64, ffn=1536, context=256
        )  # fmt: skip
        served = served_model(None, None, [], folder / "scratch")
        keys = {"device": "cpu", "cache_gb": 0.05, "speculation": "none"}
        base = replace(served, folder=model, config=ModelConfig.read(model), engine=("torch", keys))
        snapshots = [
            snapshot(model, folder / str(number), number, mode == "shared")
            for number in range(1, MODELS + 1)
        ]
        before = _memory_mib()
        seconds, cpu = asyncio.run(_sampled(base, snapshots, ENGINES[mode], rounds))
        tokens = rounds * MODELS * SAMPLES * TOKENS
        print(
            json.dumps(
                {
                    "tokens_per_s": tokens / seconds,
                    "tokens_per_cpu_s": tokens / cpu,
                    "memory_mib": _memory_mib() - before,
                }
            )
        )


def snapshot(model: Path, folder: Path, number: int, adapter: bool) -> WeightsSnapshot:
    """What a LoRA model saves for sampling: its adapter, or all weights with it merged."""
    rng = np.random.default_rng(number)
    folder.mkdir()
    weights = load_file(model / "model.safetensors")
    factors: dict[str, npt.NDArray[np.float32]] = {}
    for name, weight in weights.items():
        if name.endswith("_proj.weight"):
            a = rng.normal(0, 0.1, (RANK, weight.shape[1])).astype(np.float32)
            b = rng.normal(0, 0.1, (weight.shape[0], RANK)).astype(np.float32)
            module = f"base_model.model.{name.removesuffix('.weight')}"
            factors |= {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}
            if not adapter:
                weights[name] = weight + b @ a
    if adapter:
        save_file(factors, folder / ADAPTER)
    else:
        save_file(weights, folder / "model.safetensors")
    return WeightsSnapshot(number, folder)


async def _sampled(
    base: BaseModel, snapshots: list[WeightsSnapshot], engines: int, rounds: int
) -> tuple[float, float]:
    """Seconds and CPU seconds of all rounds. The versions are loaded before, except where engines swap them."""
    pool = EnginePool(base, engines, MODELS)
    wish = SampleWish(
        np.array([3, 5, 7], np.int32), SAMPLES, Sampling(TOKENS, ignore_eos=True), (), False
    )
    first = replace(wish, count=1, sampling=Sampling(1))
    for each in snapshots:
        await pool.sample(each, first)
    began, cpu = time.monotonic(), time.process_time()
    for _ in range(rounds):
        await asyncio.gather(*(pool.sample(each, wish) for each in snapshots))
    spent = time.monotonic() - began, time.process_time() - cpu
    await pool.close()
    return spent


def _memory_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
