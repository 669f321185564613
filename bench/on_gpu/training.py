"""Steps of the trainer `torch` compared with a hand-written loop, and rows packed as trees compared with other rows.

`train_over_minimal`: wall seconds of a step of the loss `grpo` written out on ready-made tensors, over those of ``Trainer.step`` on
the same batch, both in float32; their gradients are the same, which is checked. `train_tokens_s`, `train_bfloat16_tokens_s`: tokens
per second of ``Trainer.step``, the latter with ``compute_dtype = "bfloat16"``. `peak_memory_gb`: of that one. `tree_speedup` and
`tree_token_ratio`: as in `bench tree_packing`, in wall seconds. A step ends when its norm has been read, and so when the device
has made it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from astraflow_core.catalog import Catalog
from astraflow_core.config.environments import cache_folder
from astraflow_core.types import Batch
from astraflow_runtime.models.resolver import ModelResolver
from astraflow_testing.conformance.subject import context
from bench.support.timing import interleaved, ratio, spread
from bench.trainers import LR, Minimal, prepared
from bench.tree_packing import Layouts, Row, batch, episodes

MODEL = "tiny:qwen3?hidden=1024&layers=12&heads=16&kv_heads=8&head_dim=64&ffn=3072&context=1024"
"""150 M parameters without a vocabulary worth the name."""
SMALL = "tiny:qwen3?hidden=64&layers=2&heads=4&kv_heads=2&head_dim=16&ffn=192&context=1024"
ROWS, PROMPT, LENGTHS, WORDS = 64, 50, (150, 1000), 27
MICRO_BATCH_TOKENS = 16384


def measure(place: Path, device: str, pairs: int, small: bool) -> dict[str, float]:
    """The fields of the module's docstring, with the spread (interquartile range over median) of the pairs."""
    model = SMALL if small else MODEL
    steps = _Steps(place, model, device, rows(np.random.default_rng(0), 4 if small else ROWS))
    found = steps.over_minimal(pairs)
    found |= steps.of_bfloat16(pairs)
    layouts = Layouts(place, model, device, wall_s)
    trees = layouts.compared(episodes(np.random.default_rng(0)), pairs)
    return found | {f"tree_{name}": value for name, value in trees.items()}


def wall_s(act: Callable[[], object]) -> Callable[[], float]:
    """Wall seconds of each call."""

    def call() -> float:
        began = time.perf_counter()
        act()
        return time.perf_counter() - began

    return call


def rows(generator: np.random.Generator, many: int) -> list[Row]:
    """Rows of different lengths that share nothing."""
    return [
        (generator.integers(2, WORDS, int(length)), np.arange(length) >= PROMPT)
        for length in generator.integers(*LENGTHS, many)
    ]


class _Steps:
    """Steps on one batch."""

    def __init__(self, place: Path, model: str, device: str, given: list[Row]) -> None:
        self._place, self._device, self._catalog = place, device, Catalog.discover()
        self._folder = ModelResolver(self._catalog).resolve_model(model, 0, cache_folder())
        self._algorithm = self._built("algorithm", "grpo")
        self._batch: Batch = prepared(batch(given), self._algorithm)

    def _built(self, kind: str, use: str, **keys: Any) -> Any:
        selected, config = self._catalog.validate_options(kind, use, keys, use)
        return selected.build(config, context("trainer", self._place))

    def _trainer(self, **keys: Any) -> Any:
        made = self._built(
            "trainer", "torch", device=self._device, lr=LR, micro_batch_tokens=MICRO_BATCH_TOKENS,
            layout="bucketed", **keys,
        )  # fmt: skip
        made.setup(self._folder, 10_000, self._algorithm.needs)
        return made

    def over_minimal(self, pairs: int) -> dict[str, float]:
        """In float32."""
        trainer = self._trainer()
        device = torch.device(self._device)
        minimal = Minimal(self._folder, self._batch, MICRO_BATCH_TOKENS, device)

        def step() -> float:
            norm: float = trainer.step(self._batch, self._algorithm, 0)["grad_norm"]
            return norm

        norm, expected = step(), minimal.step()
        if not math.isclose(norm, expected, rel_tol=1e-3):
            raise AssertionError(f"norms of the gradients are {norm} and {expected}")
        ours, theirs = interleaved(pairs, wall_s(step), wall_s(minimal.step))
        trainer.close()
        return {
            "train_over_minimal": ratio(theirs, ours),
            "train_spread": spread(ours, theirs),
            "train_tokens_s": self._tokens_s(ours),
        }

    def of_bfloat16(self, pairs: int) -> dict[str, float]:
        """As most people train."""
        trainer = self._trainer(compute_dtype="bfloat16")
        peaks: list[float] = []

        def step() -> None:
            peaks.append(trainer.step(self._batch, self._algorithm, 0)["peak_memory_gb"])

        (taken,) = interleaved(pairs, wall_s(step))
        trainer.close()
        return {"train_bfloat16_tokens_s": self._tokens_s(taken), "peak_memory_gb": max(peaks)}

    def _tokens_s(self, taken: list[float]) -> float:
        return len(self._batch.tokens) / float(np.median(taken))
