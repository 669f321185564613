"""The effect of router replay on the log-probs of a model with experts, and its cost.

The engine `torch` samples with weights in bfloat16, the trainer `torch` computes log-probs with them in float32, as with
``publish_dtype = "bfloat16"``. `other_experts`: share of the sampled tokens for which a router of the trainer, in any layer,
chooses others than the engine did. `gap_mean` and `gap_largest`: absolute difference of the log-probs of both in nats, without replay;
`replayed_gap_mean` and `replayed_gap_largest`: with it. `off` and `replayed_off`: share of tokens whose probabilities differ by
more than `OFF`. `bytes_per_token`: what the experts add to a pushed group. `cost`: CPU seconds of log-probs with replay
over those without, the median of interleaved pairs, which have `spread`.
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from astraflow_core.catalog import Catalog
from astraflow_core.types import (
    Batch,
    GenerateRequest,
    Group,
    Sampling,
    Sequence,
    Trajectory,
    WeightSource,
)
from astraflow_core.types.columns import zeros
from astraflow_core.types.generation import not_recorded
from astraflow_testing.conformance._models import qwen3
from astraflow_testing.conformance.subject import context
from astraflow_tiny_model.folder import write_tiny_model
from astraflow_wire.column_table import batch_columns
from astraflow_wire.groups import encode_group
from bench.support.timing import interleaved, ratio, spread
from bench.trainers import cpu_s

SIZES = {"hidden": 64, "layers": 8, "ffn": 32, "experts": 32, "top_k": 4, "init_std": 0.15}
PROMPT, TOKENS, WORDS = 8, 56, 27
OFF = 0.05


def measure(quick: bool) -> dict[str, float]:
    """The fields of the module's docstring."""
    torch.set_num_threads(1)
    rows, pairs = (8, 3) if quick else (128, 9)
    catalog = Catalog.discover()
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        folder = write_tiny_model(place / "model", **SIZES)  # type: ignore[arg-type]

        def built(kind: str) -> Any:
            selected, keys = catalog.validate_options(kind, "torch", {"device": "cpu"}, "torch")
            return selected.build(keys, context(kind, place))

        sequences = asyncio.run(sampled(built("engine"), folder, rounded(folder), rows))
        trainer = built("trainer")
        trainer.setup(folder, 1, frozenset())
        replayed = batch_of(sequences)
        plain = replace(replayed, routed_experts=None)
        theirs, ours = interleaved(
            pairs,
            cpu_s(lambda: trainer.logprobs(plain, "current")),
            cpu_s(lambda: trainer.logprobs(replayed, "current")),
        )
        found = {
            "other_experts": other_experts(folder, sequences),
            **gaps("", plain, trainer.logprobs(plain, "current")),
            **gaps("replayed_", replayed, trainer.logprobs(replayed, "current")),
        }
        trainer.close()
    with_them, without = (len(pushed(each)) for each in (sequences, bare(sequences)))
    tokens = sum(len(each.tokens) for each in sequences)
    return {
        **found,
        "bytes_per_token": round((with_them - without) / tokens, 2),
        "cost": round(ratio(ours, theirs), 3),
        "spread": round(spread(theirs, ours), 3),
    }


def rounded(folder: Path) -> Path:
    """The weights as ``publish_dtype = "bfloat16"`` has them."""
    tensors = load_file(folder / "model.safetensors")
    file = folder.parent / "published.safetensors"
    save_file({name: tensor.bfloat16() for name, tensor in tensors.items()}, file)
    return file


async def sampled(engine: Any, folder: Path, published: Path, rows: int) -> list[Sequence]:
    """Sequences of an engine that has loaded the ``published`` weights."""
    generator = np.random.default_rng(0)
    await engine.start(folder)
    await engine.load_weights(WeightSource("solver", 1, published, "", 0, 0.0))
    requests = [
        GenerateRequest(
            str(number),
            generator.integers(2, WORDS, PROMPT).astype(np.int32),
            Sampling(TOKENS, ignore_eos=True),
            routing=True,
        )
        for number in range(rows)
    ]
    async with asyncio.timeout(600):
        results = await asyncio.gather(*map(engine.generate, requests))
    await engine.close()
    found = []
    for request, result in zip(requests, results, strict=True):
        routed = result.routed_experts
        last = np.full_like(routed[:1], not_recorded(routed.dtype))
        nothing = np.zeros(PROMPT, np.float32)
        found.append(
            Sequence(
                "solver",
                np.concatenate([request.prompt, result.tokens]),
                np.arange(PROMPT + TOKENS) >= PROMPT,
                np.concatenate([nothing, result.logprobs]),
                np.concatenate([np.full(PROMPT, -1, np.int32), result.versions]),
                reward=0.0,
                routed_experts=np.concatenate([routed, last]),
            )
        )
    return found


def bare(sequences: list[Sequence]) -> list[Sequence]:
    """Without their experts."""
    return [replace(each, routed_experts=None) for each in sequences]


def pushed(sequences: list[Sequence]) -> bytes:
    """As a RaaS pushes them."""
    return encode_group(Group("t", "p", tuple(Trajectory((s,)) for s in sequences)), "raas-0")


def batch_of(sequences: list[Sequence]) -> Batch:
    """The sequences as rows."""
    count, tokens = len(sequences), sum(len(each.tokens) for each in sequences)
    columns: dict[str, Any] = zeros(batch_columns(False, False), count, tokens)
    columns["lengths"] = np.array([len(each.tokens) for each in sequences], np.int32)
    for name in ("tokens", "loss_mask", "logprobs", "versions", "routed_experts"):
        columns[name] = np.concatenate([getattr(each, name) for each in sequences])
    return Batch(id="b", policy="solver", version=1, **columns)


def gaps(prefix: str, batch: Batch, logprobs: Any) -> dict[str, float]:
    """Of the sampled tokens."""
    gap = (logprobs - batch.logprobs)[batch.loss_mask]
    return {
        f"{prefix}gap_mean": float(np.abs(gap).mean()),
        f"{prefix}gap_largest": float(np.abs(gap).max()),
        f"{prefix}off": float((np.abs(np.expm1(gap)) > OFF).mean()),
    }


def other_experts(folder: Path, sequences: list[Sequence]) -> float:
    """The share of sampled tokens before which an independent forward pass, of the first sequences, chooses others."""
    differ = []
    for each in sequences[:32]:
        experts = qwen3.ExpertChoice()
        qwen3.logits(folder, [(folder / "model.safetensors", each.tokens[:-1])], experts)
        chosen = np.sort(np.stack(experts.chosen, 1))
        given = each.routed_experts
        assert given is not None
        differ.append((np.sort(given[:-1]) != chosen).any((1, 2))[PROMPT - 1 :])
    return float(np.concatenate(differ).mean())
