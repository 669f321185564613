"""The CPU cost of an algorithm: advantages, weights, the loss and its backward pass, of a batch of 64 rows."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import numpy as np

from astraflow_core.errors import UserError
from astraflow_testing.benchmarks.batches import BatchShape, even_batch
from astraflow_testing.benchmarks.pairs import Work
from astraflow_testing.conformance._algorithms.loss_cases import Case, complete, inputs_of

SHAPE = BatchShape(rows=64, group=8, prompt=16, sampled=48, vocabulary=50)
_NEEDED = ("reference", "proximal", "current", "values", "logit_gradients")
"""Columns of a batch that an algorithm names among its needs."""


def work(algorithm: Any) -> Work:
    """One unit is one batch, as one micro-batch of 4096 float32 tokens. Needs torch."""
    torch = _torch()
    torch.set_num_threads(1)
    case = _case(algorithm)

    def each(count: int) -> None:
        for _ in range(count):
            whole = complete(algorithm, case)
            inputs = inputs_of(torch, algorithm, whole, dtype="float32")
            terms = algorithm.loss(inputs).terms.values()
            total = sum(coefficient * value for coefficient, value in terms if coefficient)
            if torch.is_tensor(total) and total.requires_grad:
                torch.autograd.backward(total)

    return each


def _torch() -> Any:
    """The framework in which losses are measured; the rest of the testing kit does without."""
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise UserError(
            f"losses are measured with torch, which cannot be imported: {error}; pip install torch"
        ) from error


def _case(algorithm: Any) -> Case:
    """A batch with what the algorithm needs and nothing else."""
    generator = np.random.default_rng(0)
    batch = even_batch(generator, SHAPE)
    unneeded: dict[str, Any] = {n: None for n in _NEEDED if n not in algorithm.needs}
    near = batch.logprobs + generator.normal(0, 0.1, SHAPE.tokens)
    said = np.where(batch.loss_mask, near, 0.0)
    return Case(replace(batch, **unneeded), said, 3 * generator.random(SHAPE.tokens))
