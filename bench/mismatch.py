"""The difference between the log-probs of engine and trainer, pair by pair, and the cost of making them equal.

An engine samples `ROWS` rows of different lengths, and the trainer computes the log-probs of the sampled tokens, both
with the same float32 weights. `PAIR_mean`, `PAIR_p50`, `PAIR_p99` and `PAIR_largest` are of the absolute differences in
nats, `PAIR_equal` is the share of tokens with bitwise equal log-probs; `PAIR_before_64` … are means over the tokens at
these positions of their rows, `PAIR_rows_to_128` … over the tokens of rows of these lengths. `exact` is engine `torch`
with trainer `torch`, both with ``batch_invariant``; `torch_torch` is the same without it; `bfloat16_torch` has the
engine in bfloat16; `hf_torch`, `vllm_torch`, `torch_fsdp` and `torch_megatron` name the engine and the trainer.
`ENGINE_sampled_again`: the log-probs of what was sampled against the engine's own scores of the same tokens.

`exact_over_fast_sampling`, `exact_over_fast_scoring` and `exact_over_fast_step`: CPU seconds with ``batch_invariant`` over those without it, of the same
requests (16 at once; `_alone`: one), the trainer's log-probs of the same rows and a step with the loss `grpo` on them; medians of interleaved pairs.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from astraflow_core.config.environments import environment_folder, interpreter_in
from astraflow_core.types import Batch, GenerateRequest, Sampling
from astraflow_plugin_vllm.config import VllmConfig
from astraflow_plugin_vllm.server import VllmServer
from astraflow_testing.conformance.subject import context, installed
from astraflow_testing.stamping import stamped
from astraflow_tiny_model.folder import write_tiny_model
from bench.support.hosted import hosted
from bench.support.timing import interleaved, ratio
from bench.trainers import can_run, cpu_s, prepared

ROWS, AT_ONCE, QUICK_ROWS = 32, 16, 4
LONGEST_PROMPT, LONGEST_COMPLETION = 96, 224
POSITIONS, LENGTHS = (64, 128, 192, 320), (160, 320)
"""Ends of the ranges of positions and of lengths."""
CONTEXT, WORDS = 384, 27
ENVIRONMENTS = ("vllm", "tests-vllm")
"""Those that may have vLLM; none is made."""
EXACT = {"batch_invariant": True}
ENGINES: dict[str, tuple[str, dict[str, Any]]] = {
    "exact": ("torch", EXACT),
    "torch": ("torch", {}),
    "bfloat16": ("torch", {"dtype": "bfloat16"}),
    "hf": ("hf", {}),
}
TRAINERS: dict[str, tuple[str, dict[str, Any]]] = {
    "exact": ("torch", EXACT),
    "torch": ("torch", {}),
    "fsdp": ("fsdp", {}),
    "megatron": ("megatron", {}),
}
PAIRS = {
    "exact": ("exact", "exact"),
    "torch_torch": ("torch", "torch"),
    "bfloat16_torch": ("bfloat16", "torch"),
    "hf_torch": ("hf", "torch"),
    "vllm_torch": ("vllm", "torch"),
    "torch_fsdp": ("torch", "fsdp"),
    "torch_megatron": ("torch", "megatron"),
}
"""Name → engine and trainer."""

Floats = npt.NDArray[np.float32]
Rows = tuple[Batch, Floats]
"""What an engine sampled with its log-probs, and its own scores of all tokens, float32 ``[N]``."""


def measure(quick: bool) -> dict[str, float]:
    """The fields of the module's docstring; pairs that cannot run here are left out."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="astraflow-bench-") as scratch:
        place = Path(scratch)
        # Five times the weights of a fresh model, so that tokens are not equally likely. vLLM on CPU needs heads of 32.
        model = write_tiny_model(
            place / "model", hidden=128, layers=2, heads=4, kv_heads=2, head_dim=32, ffn=384, context=CONTEXT,
            init_std=0.1,
        )  # fmt: skip
        requests = list(asked(QUICK_ROWS, 24) if quick else asked(ROWS, LONGEST_COMPLETION))
        sampled = asyncio.run(_sampled(place, model, requests, quick))
        found: dict[str, float] = {}
        for other, (use, keys) in TRAINERS.items():
            if use != "torch" and (quick or not can_run(use)):
                continue
            made = trainer(place, model, use, keys)  # one after the other: some have process groups
            for pair, (engine, theirs) in PAIRS.items():
                if theirs == other and engine in sampled:
                    batch = sampled[engine][0]
                    found |= distribution(pair, batch, made.logprobs(batch, "current"))
            made.close()
        for engine, (batch, scores) in sampled.items():
            apart = np.abs(scores - batch.logprobs)[batch.loss_mask]
            found[f"{engine}_sampled_again"] = float(apart.mean())
        pairs = 1 if quick else 7
        exact, fast = (trainer(place, model, *TRAINERS[name]) for name in ("exact", "torch"))
        found |= costs_of_training(exact, fast, sampled["torch"][0], pairs)
        found |= asyncio.run(_costs_of_sampling(place, model, requests[:AT_ONCE], pairs))
    return found


def asked(rows: int, longest: int) -> Iterator[GenerateRequest]:
    """Prompts and completions of all lengths, mixed, the latter at most ``longest``."""
    random = np.random.default_rng(0)
    prompts = random.permutation(np.linspace(4, LONGEST_PROMPT, rows).astype(int))
    completions = random.permutation(np.geomspace(16, longest, rows).astype(int))
    for number, (prompt, count) in enumerate(zip(prompts, completions, strict=True)):
        tokens = random.integers(2, WORDS, int(prompt)).astype(np.int32)
        yield GenerateRequest(str(number), tokens, Sampling(int(count), ignore_eos=True))


def distribution(pair: str, batch: Batch, theirs: Floats) -> dict[str, float]:
    """Fields of a pair: of how far ``theirs`` (float32 ``[N]``) are from the log-probs of ``batch``."""
    mask = batch.loss_mask
    apart = np.abs(theirs.astype(np.float64) - batch.logprobs)
    position = np.concatenate([np.arange(length) for length in batch.lengths])
    length = np.repeat(batch.lengths, batch.lengths)
    gaps = apart[mask]
    found = {
        "mean": float(gaps.mean()),
        "p50": float(np.quantile(gaps, 0.5)),
        "p99": float(np.quantile(gaps, 0.99)),
        "largest": float(gaps.max()),
        "equal": float((gaps == 0).mean()),
    }
    for name, values, ends in (
        ("before", position, POSITIONS),
        ("rows_to", length, LENGTHS),
    ):
        first = -1
        for end in ends:
            here = mask & (values > first) & (values <= end)
            if here.any():
                found[f"{name}_{end}"] = float(apart[here].mean())
            first = end
    return {f"{pair}_{field}": value for field, value in found.items()}


def component(kind: str, use: str, keys: dict[str, Any], place: Path) -> Any:
    """One that is built as in a run."""
    (build,) = installed(kind, use, keys).variants.values()
    return build(context(kind, place))


def trainer(place: Path, model: Path, use: str, keys: dict[str, Any]) -> Any:
    """Set up, on the CPU and in float32."""
    made = component("trainer", use, {"device": "cpu", "publish_dtype": "float32", **keys}, place)
    made.setup(model, 10_000, frozenset())
    return made


@dataclass(frozen=True, slots=True)
class _Engine:
    generate: Callable[[GenerateRequest], Awaitable[Any]]
    score: Callable[[npt.NDArray[np.int32]], Awaitable[Floats]]

    async def rows(self, requests: Sequence[GenerateRequest]) -> Rows:
        results = await asyncio.gather(*(self.generate(request) for request in requests))
        prompts = [request.prompt for request in requests]
        batch = batch_of(
            prompts, [result.tokens for result in results], [r.logprobs for r in results]
        )
        scores = [
            await self.score(row) for row in np.split(batch.tokens, np.cumsum(batch.lengths)[:-1])
        ]
        return batch, np.concatenate(scores)


@asynccontextmanager
async def engine(
    place: Path, model: Path, use: str, keys: dict[str, Any]
) -> AsyncIterator[_Engine]:
    """One in this process, on the CPU."""
    given = {"device": "cpu", "max_batch": AT_ONCE, "cache_gb": 0.25, **keys}
    made = component("engine", use, given, place)
    await made.start(model)
    try:
        yield _Engine(made.generate, made.score)
    finally:
        await made.close()


@asynccontextmanager
async def vllm(place: Path, model: Path, python: str) -> AsyncIterator[_Engine]:
    """A server of vLLM on the CPU, behind its engine host."""
    keys = {"max_batch": AT_ONCE, "context_length": CONTEXT}
    config = VllmConfig(max_batch=AT_ONCE, context_length=CONTEXT)
    server = VllmServer(config, model, place / "vllm.log", 0, python, cpu=True)
    await server.start()
    try:
        async with hosted(place / "vllm", model, use="vllm", url=server.url, **keys) as client:
            yield _Engine(client.generate, lambda row: client.score(row, 120))
    finally:
        await server.stop()


async def _sampled(
    place: Path, model: Path, requests: Sequence[GenerateRequest], quick: bool
) -> dict[str, Rows]:
    found = {}
    for name, (use, keys) in ENGINES.items():
        if use == "torch" or not quick:
            async with engine(place, model, use, keys) as running:
                found[name] = await running.rows(requests)
    pythons = [interpreter_in(environment_folder(name)) for name in ENVIRONMENTS]
    python = next((each for each in pythons if each.exists()), None)
    if python is not None and not quick:
        async with vllm(place, model, str(python)) as running:
            found["vllm"] = await running.rows(requests)
    return found


def batch_of(
    prompts: Sequence[npt.NDArray[np.int32]],
    completions: Sequence[npt.NDArray[np.int32]],
    logprobs: Sequence[Floats],
) -> Batch:
    """Rows as a trainer gets them; float32 log-probs where tokens were sampled."""
    rows = [np.concatenate(pair) for pair in zip(prompts, completions, strict=True)]
    mask = np.concatenate(
        [np.arange(len(row)) >= len(prompt) for row, prompt in zip(rows, prompts, strict=True)]
    )
    given = np.zeros(len(mask), np.float32)
    given[mask] = np.concatenate(logprobs)
    count = len(rows)
    made = Batch(
        id="b",
        policy="solver",
        version=0,
        lengths=np.array([len(row) for row in rows], np.int32),
        tokens=np.concatenate(rows).astype(np.int32),
        loss_mask=mask,
        logprobs=given,
        versions=np.where(mask, 0, -1).astype(np.int32),
        rewards=np.arange(count, dtype=np.float32) % 2,
        group=np.zeros(count, np.int64),
        trajectory=np.arange(count),
        group_size=np.full(count, count, np.int32),
        group_mean=np.full(count, 0.5, np.float32),
        group_std=np.full(count, 0.5, np.float32),
    )
    return stamped(made)


def costs_of_training(exact: Any, fast: Any, batch: Batch, pairs: int) -> dict[str, float]:
    """CPU seconds of trainer `torch` with the key over those without it."""
    algorithm = component("algorithm", "grpo", {}, Path())
    given = prepared(batch, algorithm)

    def scoring(side: Any) -> Callable[[], float]:
        return cpu_s(lambda: side.logprobs(batch, "current"))

    def step(side: Any) -> Callable[[], float]:
        return cpu_s(lambda: side.step(given, algorithm, 0))

    return {
        f"exact_over_fast_{name}": round(ratio(*interleaved(pairs, of(exact), of(fast))), 3)
        for name, of in (("scoring", scoring), ("step", step))
    }


async def _costs_of_sampling(
    place: Path, model: Path, requests: Sequence[GenerateRequest], pairs: int
) -> dict[str, float]:
    async def cpu(running: _Engine, some: Sequence[GenerateRequest]) -> float:
        began = time.process_time()
        await asyncio.gather(*(running.generate(request) for request in some))
        return time.process_time() - began

    found = {}
    async with (
        engine(place, model, "torch", EXACT) as exact,
        engine(place, model, "torch", {}) as fast,
    ):
        for name, some in (("sampling", requests), ("sampling_alone", requests[:1])):
            ratios = []
            for round_ in range(pairs + 1):
                ours, theirs = await cpu(exact, some), await cpu(fast, some)
                if round_:
                    ratios.append(ours / theirs)
            found[f"exact_over_fast_{name}"] = round(statistics.median(ratios), 3)
    return found
