"""Speculation changes how many tokens a forward pass gives, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astraflow_core.types import GenerateRequest, GenerateResult, Sampling
from astraflow_plugin_torch_engine.engine import TorchEngine
from astraflow_plugin_torch_engine.speculation.lengths import DraftLengths

Serve = Callable[..., AbstractAsyncContextManager[TorchEngine]]


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every draft is tried, all of it, whatever it costs."""
    monkeypatch.setattr(DraftLengths, "choose", lambda self, kind, lengths: lengths)


def requests(samplings: list[Sampling], rounds: int = 1) -> list[GenerateRequest]:
    """A group of four and one of one for each sampling, prompts of different lengths."""
    return [
        GenerateRequest(f"{r}-{n}-{i}", np.arange(2, 3 + 3 * n, dtype=np.int32), each)
        for r in range(rounds)
        for n, each in enumerate(samplings)
        for i in range(4 if n % 2 else 1)
    ]


async def sampled(engine: TorchEngine, asked: list[GenerateRequest]) -> list[GenerateResult]:
    """In the order of ``asked``, in which they also arrive."""
    return list(await asyncio.gather(*(engine.generate(request) for request in asked)))


def both(
    serve: Serve, folder: Path, asked: list[GenerateRequest], **keys: Any
) -> tuple[list[GenerateResult], list[GenerateResult], dict[str, float]]:
    """Without and with speculation, and the gauges of the latter."""

    async def run(speculation: str) -> tuple[list[GenerateResult], dict[str, float]]:
        async with serve(folder, speculation=speculation, **keys) as engine:
            return await sampled(engine, asked), await engine.health()

    (plain, _), (found, health) = asyncio.run(run("none")), asyncio.run(run("history"))
    return plain, found, health


SAMPLINGS = [
    Sampling(40, temperature=0, ignore_eos=True),
    Sampling(50, temperature=0),
    Sampling(30, temperature=0.3, stop_token_ids=(9,)),
    Sampling(61, temperature=0.5, top_p=0.8, stop_sequences=((5, 6, 7), (12, 12))),
    Sampling(25, temperature=0.2, top_k=3, min_p=0.02, ignore_eos=True),
    Sampling(1),
]


def test_the_same_seed_samples_the_same_with_and_without_drafts(
    serve: Serve, folder: Path, always: None
) -> None:
    asked = requests(SAMPLINGS, rounds=3)
    plain, found, health = both(serve, folder, asked, max_batch=8)
    for one, other in zip(plain, found, strict=True):
        assert other.tokens.tolist() == one.tokens.tolist()
        assert (other.id, other.finish_reason) == (one.id, one.finish_reason)
        np.testing.assert_allclose(other.logprobs, one.logprobs, atol=1e-4)
    assert {r.finish_reason for r in found} == {"stop", "length"}
    # What the counters say: each row of a step gave one token and those of its draft that were right.
    tokens = sum(len(r.tokens) for r in found)
    assert health["tokens_generated"] == tokens
    assert health["decoded_rows"] + health["accepted_tokens"] == tokens - len(asked)
    assert health["drafted_tokens"] > health["accepted_tokens"] > 0.3 * tokens
