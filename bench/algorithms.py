"""The cost of the losses compared with the forward and backward passes of the quickstart's model, on the same tokens.

For each loss: CPU seconds of everything that the algorithm does for a batch (advantages, weights, the loss and
the backward pass through it to the log-probs, and the entropy, of the model), over those of the model's own
forward and backward pass that gives these and takes their gradients. Both sides are interleaved; a field is the
median of the pairs. Passes that a loss *needs* (proximal, reference, current log-probs) are the trainer's work and
are on neither side.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind
from astraflow_core.config.environments import cache_folder
from astraflow_core.types import Batch, Loss, LossInputs
from astraflow_runtime.models.resolver import ModelResolver
from astraflow_testing.benchmarks.batches import BatchShape, even_batch
from astraflow_testing.conformance.subject import context
from astraflow_torch_training.model import CausalLM, load_model
from astraflow_training.micro_batches import micro_batches
from bench.support.timing import interleaved, ratio, spread

MODEL = "tiny:qwen3?hidden=128&layers=2&heads=4&kv_heads=2&head_dim=32&ffn=384&context=64"
SHAPE = BatchShape(rows=512, group=16, prompt=7, sampled=6, vocabulary=27, versions=4)
MICRO_BATCH_TOKENS = 2048
"""What the trainer `torch` takes on CPU."""

KEYS: dict[str, dict[str, Any]] = {
    "dr_grpo": {"max_tokens": SHAPE.sampled},
    "gdpo": {"rewards": {"correct": 1.0, "form": 0.5}},
}
"""Keys without which a loss cannot be; the others are measured with their defaults."""

TIS = {"proximal": "recompute", "corrections": [{"mode": "truncate", "high": 2.0}]}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo_kl_entropy": ("grpo", {"kl_coef": 0.01, "entropy_coef": 0.1}),
    "grpo_tis": ("grpo", TIS),
}
"""Field → component and its keys, beside each loss itself."""


def losses(catalog: Catalog) -> dict[str, tuple[str, dict[str, Any]]]:
    """Field → component and its keys, of all losses of the plugin."""
    found = [
        entry.component.name
        for entry in catalog.components(Kind.ALGORITHM)
        if entry.distribution == "astraflow-plugin-losses"
    ]
    return {name: (name, KEYS.get(name, {})) for name in found} | VARIANTS


def measure(quick: bool) -> dict[str, float]:
    """``worst_fraction`` over the losses, and a field for each with its fraction; in between, the pass in
    CPU milliseconds and the largest spread (interquartile range over median of the pairs' ratios)."""
    torch.set_num_threads(1)
    pairs, shape = (2, replace(SHAPE, rows=64)) if quick else (9, SHAPE)
    catalog = Catalog.discover()
    folder = ModelResolver(catalog).resolve_model(MODEL, 0, cache_folder())
    model = load_model(folder, torch.device("cpu"), "sdpa", False, None)
    fractions, spreads, passes = {}, [], []
    for field, (use, keys) in losses(catalog).items():
        selected, config = catalog.validate_options("algorithm", use, keys, field)
        with tempfile.TemporaryDirectory() as scratch:
            algorithm = selected.build(config, context("trainer", Path(scratch)))
        case = Case(model, algorithm, batch(np.random.default_rng(0), shape))
        ours, theirs = interleaved(pairs, case.loss_s, case.model_s)
        fractions[field] = ratio(ours, theirs)
        spreads.append(spread(ours, theirs))
        passes += theirs
    return {
        "worst_fraction": max(fractions.values()),
        **fractions,
        "pass_ms": 1000 * statistics.median(passes),
        "spread": max(spreads),
        "tokens": float(shape.tokens),
    }


def batch(generator: np.random.Generator, shape: BatchShape = SHAPE) -> Batch:
    """A batch, of the quickstart's shape, whose tokens are a few versions old."""
    return even_batch(generator, shape)


@dataclass(frozen=True, slots=True)
class Part:
    """A micro-batch: its place in the batch, the targets, and what the model said of them."""

    micro: Any
    targets: torch.Tensor
    logprobs: torch.Tensor
    entropy: torch.Tensor | None


class Case:
    """One algorithm, one batch; each side as a function that gives its CPU seconds."""

    def __init__(self, model: CausalLM, algorithm: Any, given: Batch) -> None:
        self._model, self._algorithm, self._batch = model, algorithm, given
        self._entropy = "entropy" in algorithm.needs
        self._parts = [self._predicted(micro) for micro in self._cut()]

    def model_s(self) -> float:
        """Forward and backward passes of the model, with a gradient of ones."""
        began = time.process_time()
        for part in self._parts:
            said = self._model.predict(part.micro, part.targets, 1.0, self._entropy)
            total = said.logprobs.sum()
            if said.entropy is not None:
                total = total + said.entropy.sum()
            torch.autograd.backward(total)
        took = time.process_time() - began
        for parameter in self._model.whole.parameters():
            parameter.grad = None
        return took

    def loss_s(self) -> float:
        """All that the algorithm does, backward to what the model gave."""
        began = time.process_time()
        for _ in self.losses():
            pass
        return time.process_time() - began

    def losses(self) -> Iterator[Loss]:
        """The loss of each micro-batch, its backward pass done."""
        prepared = replace(self._batch, advantages=self._algorithm.advantages(self._batch))
        prepared = replace(prepared, weights=self._algorithm.weights(prepared))
        for part in self._parts:
            loss = self._algorithm.loss(self._inputs(prepared, part))
            total = torch.zeros(())
            for coefficient, value in loss.terms.values():
                total = total + coefficient * value
            torch.autograd.backward(total)
            yield loss

    def _cut(self) -> Any:
        return micro_batches(self._batch, self._batch.loss_mask, MICRO_BATCH_TOKENS, False)

    def _predicted(self, micro: Any) -> Part:
        targets = torch.from_numpy(self._batch.tokens[micro.positions].astype(np.int64))
        with torch.no_grad():
            said = self._model.predict(micro, targets, 1.0, self._entropy)
        entropy = None if said.entropy is None else said.entropy.clone().requires_grad_()
        return Part(micro, targets, said.logprobs.clone().requires_grad_(), entropy)

    def _inputs(self, given: Batch, part: Part) -> LossInputs:
        positions = part.micro.positions

        def there(values: Any) -> torch.Tensor:
            return torch.from_numpy(values[positions])

        def if_needed(name: str) -> torch.Tensor | None:
            return there(getattr(given, name)) if name in self._algorithm.needs else None

        values = if_needed("values")
        return LossInputs(
            logprobs=part.logprobs,
            behaviour=there(given.logprobs),
            advantages=there(given.advantages),
            mask=torch.ones(len(positions), dtype=torch.bool),
            row=torch.from_numpy(part.micro.row),
            rows=part.micro.rows,
            weights={name: there(share) for name, share in given.weights.items()},
            step=0,
            entropy=part.entropy,
            proximal=if_needed("proximal"),
            reference=if_needed("reference"),
            current=if_needed("current"),
            values=values,
            predicted_values=None if values is None else values.clone().requires_grad_(),
        )
