"""Engine `torch` compared with ``model.generate``.

`torch_over_generate_ragged`: as in `bench engines`, on the device. `torch_tokens_s`: tokens per second of `REQUESTS` requests at once
with prompts of `PROMPT` and answers of `SAMPLED` tokens, in bfloat16.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import numpy as np

from astraflow_core.catalog import Catalog
from astraflow_core.config.environments import cache_folder
from astraflow_core.types import GenerateRequest, Sampling
from astraflow_runtime.models.resolver import ModelResolver
from astraflow_testing.conformance.subject import context, installed
from bench.engines import over_generate
from bench.on_gpu.training import MODEL, SMALL, WORDS

REQUESTS, PROMPT, SAMPLED, CONTEXT = 64, 128, 256, 1024


def measure(place: Path, device: str, rounds: int, small: bool) -> dict[str, float]:
    """The fields of the module's docstring."""
    name = SMALL if small else MODEL
    model = ModelResolver(Catalog.discover()).resolve_model(name, 0, cache_folder())
    return asyncio.run(_measured(place, model, device, rounds, 4 if small else REQUESTS))


async def _measured(
    place: Path, model: Path, device: str, rounds: int, requests: int
) -> dict[str, float]:
    over = await over_generate(place / "ragged", model, rounds, device)
    keys = {
        "device": device, "dtype": "bfloat16", "max_batch": requests, "context_length": CONTEXT, "cache_gb": 1.0,
    }  # fmt: skip
    (build,) = installed("engine", "torch", keys).variants.values()
    engine = build(context("engine", place / "sampled"))
    generator = np.random.default_rng(0)
    sampling = Sampling(SAMPLED, ignore_eos=True)
    asked = [
        GenerateRequest(str(n), generator.integers(2, WORDS, PROMPT).astype(np.int32), sampling)
        for n in range(requests)
    ]
    await engine.start(model)
    taken = []
    try:
        for round_ in range(rounds + 1):
            began = time.perf_counter()
            await asyncio.gather(*(engine.generate(request) for request in asked))
            if round_:  # the first one compiles and allocates
                taken.append(time.perf_counter() - began)
    finally:
        await engine.close()
    return {
        "torch_over_generate_ragged": over,
        "torch_tokens_s": requests * SAMPLED / float(np.median(taken)),
    }
