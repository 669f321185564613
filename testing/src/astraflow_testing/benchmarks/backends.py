"""The cost of engines and trainers on a small model, with a few random weights on the CPU."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from astraflow_core.types import GenerateRequest, Sampling
from astraflow_testing.benchmarks.batches import BatchShape, even_batch
from astraflow_testing.benchmarks.pairs import Work
from astraflow_testing.conformance._algorithms.loss_cases import Case, complete
from astraflow_tiny_model.folder import ALPHABET, write_tiny_model

SHAPE = BatchShape(rows=64, group=8, prompt=16, sampled=48, vocabulary=len(ALPHABET))
AT_ONCE = 32
LENGTH = 16
"""Tokens of a prompt, and of what is sampled."""
_UNLIMITED = 1 << 20
"""Optimizer steps, for a schedule."""
_TRAINER_FILLS = ("reference", "proximal", "current", "values", "logit_gradients")


def model_of(folder: Path | None, work: Path) -> Path:
    """The Hugging Face folder to measure on: ``folder``, or a model of 0.1 M parameters that is written."""
    return folder or write_tiny_model(work / "model")


def engine(component: Any, model: Path, ends: ExitStack) -> Work:
    """One unit is 32 requests at once, each of 16 tokens with 16 to sample."""
    runner = ends.enter_context(asyncio.Runner())
    ends.callback(lambda: runner.run(component.close()))
    runner.run(component.start(model))
    generator = np.random.default_rng(0)
    sampling = Sampling(max_tokens=LENGTH, ignore_eos=True)

    def request(unit: int, number: int) -> GenerateRequest:
        prompt = generator.integers(2, SHAPE.vocabulary, LENGTH).astype(np.int32)
        return GenerateRequest(f"{unit}-{number}", prompt, sampling)

    async def sampled(unit: int) -> None:
        await asyncio.gather(*(component.generate(request(unit, n)) for n in range(AT_ONCE)))

    def work(count: int) -> None:
        for unit in range(count):
            runner.run(sampled(unit))

    return work


def trainer(component: Any, algorithm: Any, model: Path, ends: ExitStack) -> Work:
    """One unit is an optimizer step with the loss ``grpo`` on 4,096 tokens in 64 rows."""
    ends.callback(component.close)
    component.setup(model, _UNLIMITED, algorithm.needs)
    unneeded: dict[str, Any] = {n: None for n in _TRAINER_FILLS if n not in algorithm.needs}
    batch = replace(even_batch(np.random.default_rng(0), SHAPE), **unneeded)
    whole = complete(
        algorithm, Case(batch, batch.logprobs.astype(float), np.zeros(SHAPE.tokens))
    ).batch
    steps = itertools.count()

    def work(count: int) -> None:
        for number in itertools.islice(steps, count):
            component.step(whole, algorithm, number)

    return work
