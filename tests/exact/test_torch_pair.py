"""With ``batch_invariant``, engine ``torch`` and trainer ``torch`` have bitwise equal log-probs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from astraflow_core.types import Batch, GenerateRequest, GenerateResult, Sampling
from astraflow_testing.conformance.subject import context, installed
from astraflow_testing.stamping import stamped

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

Tokens = npt.NDArray[np.int32]
EXACT = {"batch_invariant": True, "device": "cpu"}


@dataclass(frozen=True)
class Case:
    """A model, and what is asked of it."""

    kind: str
    layers: int
    groups: int
    shared: int
    head_dim: int
    hidden: int
    ffn: int
    tie: bool
    prompts: tuple[int, ...]
    sampled: tuple[int, ...]
    max_batch: int
    temperature: float
    micro_batch_tokens: int
    threads: int
    seed: int

    def write(self, folder: Path) -> Path:
        """The model, with distributions far from uniform."""
        config = {"qwen3": transformers.Qwen3Config, "llama": transformers.LlamaConfig}[self.kind](
            vocab_size=37, hidden_size=self.hidden, intermediate_size=self.ffn,
            num_hidden_layers=self.layers, num_attention_heads=self.groups * self.shared,
            num_key_value_heads=self.groups, head_dim=self.head_dim, max_position_embeddings=256,
            tie_word_embeddings=self.tie, eos_token_id=1, pad_token_id=0, bos_token_id=None,
            initializer_range=0.2,
        )  # fmt: skip
        torch.manual_seed(self.seed)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        return folder

    def requests(self) -> list[GenerateRequest]:
        random = np.random.default_rng(self.seed)
        return [
            GenerateRequest(
                str(number),
                random.integers(2, 37, prompt).astype(np.int32),
                Sampling(sampled, temperature=self.temperature, ignore_eos=True),
            )
            for number, (prompt, sampled) in enumerate(zip(self.prompts, self.sampled, strict=True))
        ]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    number = draw(st.integers(1, 7))

    def lengths(most: int) -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(1, most), min_size=number, max_size=number)))

    return Case(
        kind=draw(st.sampled_from(["qwen3", "llama"])),
        layers=draw(st.integers(1, 2)),
        groups=draw(st.integers(1, 3)),
        shared=draw(st.integers(1, 3)),
        head_dim=draw(st.sampled_from([4, 8, 10, 32])),
        hidden=draw(st.sampled_from([36, 72])),
        ffn=draw(st.sampled_from([7, 48, 131])),
        tie=draw(st.booleans()),
        prompts=lengths(90),
        sampled=lengths(24),
        max_batch=draw(st.integers(1, 7)),
        temperature=draw(st.sampled_from([1.0, 0.7, 1.3])),
        micro_batch_tokens=draw(st.sampled_from([16, 200, 2048])),
        threads=draw(st.integers(1, 2)),
        seed=draw(st.integers(0, 2**16)),
    )


def component(kind: str, keys: dict[str, Any], place: Path) -> Any:
    (build,) = installed(kind, "torch", keys).variants.values()
    return build(context(kind, place))


async def sampled_by(engine: Any, model: Path, requests: list[GenerateRequest]) -> Any:
    await engine.start(model)
    try:
        results = await asyncio.gather(*(engine.generate(request) for request in requests))
        rows = [
            np.concatenate([r.prompt, x.tokens]) for r, x in zip(requests, results, strict=True)
        ]
        return results, [await engine.score(row) for row in rows]
    finally:
        await engine.close()


def rows_of(
    requests: list[GenerateRequest], results: list[GenerateResult], temperature: float
) -> Batch:
    """All of them as one batch; the log-probs are those of the engine."""
    sizes = [(len(r.prompt), len(x.tokens)) for r, x in zip(requests, results, strict=True)]
    mask = np.concatenate([np.arange(p + s) >= p for p, s in sizes])
    logprobs = np.zeros(len(mask), np.float32)
    logprobs[mask] = np.concatenate([x.logprobs for x in results])
    count = len(sizes)
    return stamped(
        Batch(
            id="b",
            policy="solver",
            version=0,
            lengths=np.array([p + s for p, s in sizes], np.int32),
            tokens=np.concatenate(
                [
                    np.concatenate([r.prompt, x.tokens])
                    for r, x in zip(requests, results, strict=True)
                ]
            ).astype(np.int32),
            loss_mask=mask,
            logprobs=logprobs,
            versions=np.where(mask, 0, -1).astype(np.int32),
            rewards=np.zeros(count, np.float32),
            group=np.zeros(count, np.int64),
            trajectory=np.arange(count),
            group_size=np.full(count, count, np.int32),
            group_mean=np.zeros(count, np.float32),
            group_std=np.zeros(count, np.float32),
            temperature=temperature,
        )
    )


def trainer_of(case: Case, model: Path, place: Path, **keys: Any) -> Any:
    trainer = component(
        "trainer",
        {
            **EXACT,
            "publish_dtype": "float32",
            "micro_batch_tokens": case.micro_batch_tokens,
            "threads": case.threads,
            **keys,
        },
        place,
    )
    trainer.setup(model, 10, frozenset())
    return trainer


@pytest.mark.slow
@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(cases())
def test_sampling_scoring_and_training_agree_bitwise(tmp_path_factory: Any, case: Case) -> None:
    place = tmp_path_factory.mktemp("pair")
    model = case.write(place / "model")
    keys = {**EXACT, "max_batch": case.max_batch, "cache_gb": 0.01}
    requests = case.requests()
    results, scores = asyncio.run(sampled_by(component("engine", keys, place), model, requests))
    batch = rows_of(requests, results, case.temperature)
    trainer = trainer_of(case, model, place)
    theirs = trainer.logprobs(batch, "current")
    assert (theirs[batch.loss_mask] == batch.logprobs[batch.loss_mask]).all()
    raw = trainer.logprobs(replace(batch, temperature=1.0), "current")
    assert (raw == np.concatenate(scores)).all()
    trainer.close()
