"""What trainers cost beside a minimal hand-written loop over the same micro-batches.

`over_minimal`: CPU seconds of a step with the loss `grpo` written out on ready-made tensors, over those of
`Trainer.step` of `torch` on the same batch (so 1 is no overhead); both make the same gradient, which is checked.
`fsdp_over_minimal`, `megatron_over_minimal`: the same of these trainers at one rank; the latter where Megatron-Core is
installed, and on its stand-in for CUDA, which costs it something too. `fsdp_two_ranks_over_minimal`: the same of two ranks
with half of the rows each, their CPU seconds added up. The rest is of `torch`. `padding_waste`: the share of computed tokens that are padding, for rows of log-normal lengths. `export_over_memcpy`: an export whose
tensors are copied into a buffer, over one copy of the same bytes; `export_cast_over_memcpy` the same in bfloat16, whose
memcpy is of half the bytes. `checkpoint_stall`: seconds of CPU that a checkpoint takes from the loop, over those of
the ten steps between two of them; hashing and flushing happen beside the loop.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from astraflow_core.catalog import Catalog
from astraflow_core.config.environments import cache_folder
from astraflow_core.config.models import CheckpointTable
from astraflow_core.types import Batch, Ranks
from astraflow_runtime.models.resolver import ModelResolver
from astraflow_runtime.trainer.checkpoints.saving import Saving
from astraflow_runtime.trainer.checkpoints.store import Checkpoints
from astraflow_testing.conformance.subject import context
from astraflow_torch_training.model import load_model
from astraflow_training.micro_batches import micro_batches
from bench.algorithms import MICRO_BATCH_TOKENS, MODEL, SHAPE, batch
from bench.support.processes import running, wait_for
from bench.support.timing import interleaved, ratio, spread

LARGER = "tiny:qwen3?hidden=768&layers=3&heads=12&kv_heads=12&head_dim=64&ffn=2048&context=64"
"""For exports (85 MB in float32): copying the quickstart's model takes less than naming its tensors."""
LR, CLIP = 1e-6, 0.2
BESIDE = ("fsdp", "megatron")
"""Trainers that are measured beside the loop as `torch` is, one after the other: each has process groups of its own."""
DTYPES = ("float32", "bfloat16")
ALONE = Ranks()
CPU = torch.device("cpu")
RANKS_S = 600.0
STEPS_BETWEEN = 10
"""Updates between two checkpoints."""


class Scene:
    """What all steps have in common: model, batch of so many ``rows`` and loss; with a ``place`` for what trainers write."""

    def __init__(self, place: Path, rows: int = SHAPE.rows) -> None:
        torch.set_num_threads(1)
        self._catalog, self.place = Catalog.discover(), place
        self.folder = self.model(MODEL)
        self.algorithm = self.built("algorithm", "grpo")
        shape = replace(SHAPE, rows=rows)
        self.given = prepared(batch(np.random.default_rng(0), shape), self.algorithm)

    def model(self, name: str) -> Path:
        """The folder of a model."""
        return ModelResolver(self._catalog).resolve_model(name, 0, cache_folder())

    def built(self, kind: str, use: str, ranks: Ranks = ALONE, **keys: Any) -> Any:
        """A component with these keys."""
        selected, config = self._catalog.validate_options(kind, use, keys, use)
        return selected.build(config, replace(context("trainer", self.place), ranks=ranks))

    def trainer(self, use: str, ranks: Ranks = ALONE) -> Any:
        """Set up."""
        made = self.built("trainer", use, ranks, device="cpu", lr=LR, publish_dtype="float32")
        made.setup(self.folder, 10_000, self.algorithm.needs)
        return made

    def turns(self, trainer: Any, pairs: int) -> list[list[float]]:
        """CPU seconds of steps of a trainer and of the loop in turn, from the same weights; raises if their gradients
        differ."""
        minimal = Minimal(self.folder, self.given)

        def step() -> float:
            norm: float = trainer.step(self.given, self.algorithm, 0)["grad_norm"]
            return norm

        norm, expected = step(), minimal.step()
        if not math.isclose(norm, expected, rel_tol=1e-3):
            raise AssertionError(
                f"{type(trainer).__name__}: norms of the gradients are {norm} and {expected}"
            )
        return interleaved(pairs, cpu_s(step), cpu_s(minimal.step))


def measure(quick: bool) -> dict[str, float]:
    """The fields of the module's docstring, with the spread (interquartile range over median) of the pairs."""
    pairs, rows = (2, 64) if quick else (15, SHAPE.rows)
    with tempfile.TemporaryDirectory() as scratch:
        scene = Scene(Path(scratch), rows)
        found = two_ranks(Path(scratch), pairs, rows)
        for use in (name for name in BESIDE if can_run(name)):
            made = scene.trainer(use)
            found |= over_minimal(f"{use}_", scene, *scene.turns(made, pairs))
            made.close()
        own = scene.trainer("torch")
        found |= over_minimal("", scene, *scene.turns(own, pairs))
        large = scene.model(LARGER)
        exporters = [
            scene.built("trainer", "torch", device="cpu", publish_dtype=dtype) for dtype in DTYPES
        ]
        for exporter in exporters:
            exporter.setup(large, 10_000, frozenset())
        full, half = (export_over_memcpy(exporter, pairs) for exporter in exporters)
        return found | {
            "padding_waste": padding_waste(),
            "export_over_memcpy": full,
            "export_cast_over_memcpy": half,
            "checkpoint_stall": checkpoint_stall(scene, own, 1 if quick else 9),
        }


def can_run(use: str) -> bool:
    """Whether this trainer runs here on a CPU."""
    if use == "megatron":
        installed = importlib.util.find_spec("megatron") is not None
        return installed and not torch.cuda.is_available()
    return True


def over_minimal(
    prefix: str, scene: Scene, ours: list[float], theirs: list[float]
) -> dict[str, float]:
    """The three fields of a trainer."""
    return {
        f"{prefix}over_minimal": ratio(theirs, ours),
        f"{prefix}spread": spread(ours, theirs),
        f"{prefix}tokens_per_s": len(scene.given.tokens) / float(np.median(ours)),
    }


def two_ranks(place: Path, pairs: int, rows: int) -> dict[str, float]:
    """Of `fsdp`: the loop's CPU seconds over those of both ranks, whose steps take turns with it; waiting takes none."""
    store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    with contextlib.ExitStack() as stack:
        ranks = [
            stack.enter_context(
                running(
                    "bench.support.fsdp_rank",
                    str(place),
                    str(pairs),
                    str(rows),
                    RANK=str(rank),
                    MASTER_ADDR="127.0.0.1",
                    MASTER_PORT=str(store.port),
                    TORCHELASTIC_USE_AGENT_STORE="True",
                    GLOO_SOCKET_IFNAME="lo",
                )
            )
            for rank in (0, 1)
        ]
        wait_for(ranks, RANKS_S)
    first, second = (json.loads((place / f"rank{rank}.json").read_text()) for rank in (0, 1))
    both = [sum(pair) for pair in zip(first["ours"], second["ours"], strict=True)]
    return {
        "fsdp_two_ranks_over_minimal": ratio(first["theirs"], both),
        "fsdp_two_ranks_spread": spread(both, first["theirs"]),
    }


def prepared(given: Batch, algorithm: Any) -> Batch:
    """With advantages and weights."""
    given = replace(given, advantages=algorithm.advantages(given))
    return replace(given, weights=algorithm.weights(given))


def cpu_s(act: Callable[[], object]) -> Callable[[], float]:
    """CPU seconds of each call."""

    def call() -> float:
        began = time.process_time()
        act()
        return time.process_time() - began

    return call


class Minimal:
    """A step written out: forward, log-probs, clipped loss, backward, clip, AdamW; all tensors are ready."""

    def __init__(
        self,
        folder: Path,
        given: Batch,
        most_tokens: int = MICRO_BATCH_TOKENS,
        device: torch.device = CPU,
    ) -> None:
        self._whole = load_model(folder, device, "sdpa", False, None).whole
        self._optimizer = torch.optim.AdamW(self._whole.parameters(), lr=LR, fused=True)
        assert given.advantages is not None
        columns = (given.tokens.astype(np.int64), given.logprobs, given.advantages)
        self._parts = [
            [
                torch.from_numpy(array).to(device)
                for array in (
                    micro.input_ids,
                    micro.states,
                    *(c[micro.positions] for c in (*columns, given.weights["policy"])),
                )
            ]
            for micro in micro_batches(given, given.loss_mask, most_tokens, False)
        ]

    def step(self) -> float:
        """One update; the norm of its gradient."""
        self._optimizer.zero_grad(set_to_none=True)
        for ids, states, targets, behaviour, advantages, share in self._parts:
            hidden = self._whole.base_model(input_ids=ids, use_cache=False).last_hidden_state
            logits = self._whole.lm_head(hidden.flatten(0, 1)[states])
            logprobs = torch.log_softmax(logits, -1).gather(1, targets[:, None]).squeeze(1)
            ratio = torch.exp(logprobs - behaviour)
            clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
            torch.autograd.backward(
                -(share * torch.minimum(ratio * advantages, clipped * advantages)).sum()
            )
        norm = torch.nn.utils.clip_grad_norm_(self._whole.parameters(), 1.0)
        self._optimizer.step()
        return float(norm)


def padding_waste() -> float:
    """Of the buckets of 1024 rows with a median of 150 tokens, σ = 0.7, at 512 tokens most."""
    generator = np.random.default_rng(0)
    lengths = np.clip(generator.lognormal(5.0, 0.7, 1024), 4, 512).astype(np.int32)
    total = int(lengths.sum())
    rows = np.zeros(len(lengths), np.float32)
    numbers = np.arange(len(lengths))
    ragged = Batch(
        "b", "p", 0, lengths, np.ones(total, np.int32), np.ones(total, bool),
        np.zeros(total, np.float32), np.zeros(total, np.int32), rows, numbers, numbers,
        np.ones(len(lengths), np.int32), rows, rows,
    )  # fmt: skip
    cuts = list(micro_batches(ragged, ragged.loss_mask, MICRO_BATCH_TOKENS, False))
    return 1 - sum(cut.tokens for cut in cuts) / sum(cut.computed for cut in cuts)


def export_over_memcpy(trainer: Any, pairs: int) -> float:
    """An export that is copied into one buffer, over the copy of as many bytes."""
    size = sum(len(memoryview(tensor.data).cast("B")) for tensor in trainer.export())
    buffer, whole = np.zeros(size, np.uint8), np.ones(size, np.uint8)

    def export() -> None:
        end = 0
        for tensor in trainer.export():
            start, end = end, end + tensor.data.size
            buffer[start:end] = tensor.data

    def copy() -> None:
        buffer[:] = whole

    return ratio(*interleaved(pairs, cpu_s(export), cpu_s(copy)))


class Direct:
    """A trainer's state, saved as the service has it saved."""

    def __init__(self, trainer: Any) -> None:
        self.save = trainer.save

    def finish_save(self, wait: bool) -> bool:
        """True: the state is written when :meth:`save` returns."""
        return True


class IgnoredReleases:
    """A dataflow client that ignores releases."""

    def release(self, updates: int, last: bool = False) -> None:
        """Ignored."""


def checkpoint_stall(scene: Scene, trainer: Any, rounds: int) -> float:
    """CPU of the loop's own thread, which hashing and flushing do not share."""
    table = CheckpointTable(every=STEPS_BETWEEN)
    direct: Any = Direct(trainer)
    dataflow: Any = IgnoredReleases()
    saving = Saving(Checkpoints(scene.place / "c", "p", keep=2), direct, dataflow, table)
    stalled = stepped = 0.0
    for update in range(1, rounds * STEPS_BETWEEN + 1):
        began = time.thread_time()
        trainer.step(scene.given, scene.algorithm, 0)
        between = time.thread_time()
        saving.after_update(update, update)
        stepped += between - began
        stalled += time.thread_time() - between
    saving.finish(rounds * STEPS_BETWEEN, 0)
    return stalled / (stepped + stalled)
