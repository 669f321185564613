"""A service on a tiny model in this process, for tests that import torch."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from astraflow_contrib_tinker.service import Service
from astraflow_contrib_tinker.wire.datums import Array, Datum, GradientRequest
from astraflow_contrib_tinker.work.base import BaseModel
from astraflow_contrib_tinker.work.store import Store
from astraflow_core.catalog import Catalog
from astraflow_serving.model_folder import ModelConfig
from astraflow_tiny_model.folder import write_tiny_model

T = TypeVar("T")
VOCABULARY = 27
PROMPT, SAMPLED = 3, 5
TRAINER = {"device": "cpu", "publish_dtype": "float32"}
DEADLINE_S = 60.0


def base_model(folder: Path, **keys: Any) -> BaseModel:
    model = folder / "model"
    if not model.exists():
        write_tiny_model(model, hidden=32, layers=2, heads=4, kv_heads=2, init_std=0.2)
    return BaseModel(
        "test/tiny",
        model,
        ModelConfig.read(model),
        Catalog.discover(),
        ("torch", {**TRAINER, **keys}),
        ("torch", {"device": "cpu"}),
        folder / "scratch",
        0,
    )


def service(
    folder: Path, models: int = 4, engines: int = 1, keep_every: int = 0, **keys: Any
) -> Service:
    store = Store(folder / "saved")
    return Service(base_model(folder, **keys), store, models, engines, keep_every)


def in_loop(work: Coroutine[Any, Any, T]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(DEADLINE_S):
            return await work

    return asyncio.run(bounded())


def data(seed: int = 0, count: int = 4) -> list[Datum]:
    """Prompts and sampled tokens, with everything that the losses take."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(count):
        tokens = rng.integers(1, VOCABULARY, PROMPT + SAMPLED).astype(np.int32)
        sampled = np.arange(1, len(tokens)) >= PROMPT
        inputs: dict[str, Array] = {
            "target_tokens": tokens[1:].astype(np.int64),
            "weights": (sampled * rng.random(len(sampled))).astype(np.float32),
            "logprobs": (sampled * (-3 - rng.random(len(sampled)))).astype(np.float32),
            "advantages": (sampled * rng.normal(0, 1, len(sampled))).astype(np.float32),
            "sequence_ratio_mask": sampled.astype(np.float32),
        }
        found.append(Datum(tokens[:-1], inputs))
    return found


def request(
    loss: str,
    given: list[Datum],
    config: dict[str, float | str] | None = None,
    backward: bool = True,
) -> GradientRequest:
    return GradientRequest("", 1, given, loss, config or {}, backward)
