"""What drafts from the history save in the engine `torch`, and that they change nothing.

A model of four layers samples `PROMPTS` prompts `SAMPLES` times each, `TOKENS` tokens, with ``speculation = "none"`` and with
``"history"``, in turn. It is made so that it speaks in phrases of `PHRASE` tokens, after each of which it chooses one of `FORKS`
others evenly: 0.13 nats a token. `speedup_repetitive`: CPU seconds without drafts over those with them, the same prompts in each round.
`speedup_fresh`: the same of text that nobody has seen, other prompts in each round and at a temperature where all tokens are about as
likely. `wall_…`: the same in wall seconds. `forwards_per_token_…`: how often a row was in a forward pass for each token that it got
from one; 1 without drafts. `accepted_…`: right tokens of those drafted. Medians of interleaved pairs, which have `spread_…`.

`p_value`: of a chi-square test of `tested_tokens` tokens of a random model against the exact distributions, with every draft verified. The
probability of each token and of those below it, by a forward pass over the whole sequence in float64, is an interval; a number drawn
evenly from it is even in [0, 1) over all tokens if and only if tokens are of these distributions. `tested_accepted`: the share
of them that were drafted.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from astraflow_core.types import GenerateRequest, GenerateResult, Sampling
from astraflow_plugin_torch_engine.config import TorchEngineConfig
from astraflow_plugin_torch_engine.engine import TorchEngine
from astraflow_plugin_torch_engine.speculation.lengths import DraftLengths
from astraflow_testing.conformance.subject import context
from astraflow_tiny_model.folder import write_tiny_model
from bench.support.timing import ratio, spread

SIZES: dict[str, Any] = {"hidden": 256, "layers": 4, "heads": 4, "context": 512, "tie": False}
WORDS, PHRASE, FORKS = 512, 16, 8
CERTAIN = 12.0
"""Logit of what comes next, beside others around 0."""
ALPHABET = "".join(chr(0x4E00 + number) for number in range(WORDS))
PROMPTS, SAMPLES, PROMPT, TOKENS = 4, 4, 16, 128
TEMPERATURES = {"repetitive": 1.0, "fresh": 20.0}
SMALL: dict[str, Any] = {"hidden": 32, "layers": 2, "head_dim": 8, "context": 128, "init_std": 0.3}
TESTED, BINS, BATCH, GROUP, LENGTH, SMALL_WORDS = 1_000_000, 200, 256, 16, 100, 27

Tokens = npt.NDArray[np.int32]


def measure(quick: bool) -> dict[str, float]:
    """The fields of the module's docstring."""
    torch.set_num_threads(1)
    pairs, tested = (3, 20_000) if quick else (9, TESTED)
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        folder = write_phrases_model(place / "model")
        for name in TEMPERATURES:
            measured = asyncio.run(compared(folder, place, name, pairs))
            found |= {f"{field}_{name}": value for field, value in measured.items()}
        small = write_tiny_model(place / "small", **SMALL)
        found |= tested_against_exact(small, place, tested)
    return found


def write_phrases_model(folder: Path) -> Path:
    """Token t is followed by t + 1, and the last of a phrase by the first of one of `FORKS` phrases. Attention and feed-forward
    layers are computed as in any model, and add nothing."""
    write_tiny_model(folder, alphabet=ALPHABET, pad=ALPHABET[0], eos=ALPHABET[1], **SIZES)
    tensors = load_file(folder / "model.safetensors")
    generator = np.random.default_rng(0)
    size = SIZES["hidden"]
    words = generator.normal(size=(WORDS, size))
    words /= np.linalg.norm(words, axis=1, keepdims=True)
    following = np.zeros((WORDS, size))
    for token in range(WORDS):
        ends = token % PHRASE == PHRASE - 1
        phrases = generator.choice(WORDS // PHRASE, FORKS, replace=False) * PHRASE
        following[phrases if ends else [token + 1]] += CERTAIN / size**0.5 * words[token]
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor.zero_()
    tensors["model.embed_tokens.weight"] = torch.from_numpy(words).float()
    tensors["lm_head.weight"] = torch.from_numpy(following).float()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def engine(place: Path, speculation: str, **keys: Any) -> TorchEngine:
    """Not started."""
    config = TorchEngineConfig.model_validate({"device": "cpu", "speculation": speculation, **keys})
    return TorchEngine(config, context("engine", place))


def rounds(name: str, number: int) -> list[GenerateRequest]:
    """The requests of a round."""
    generator = np.random.default_rng(number if name == "fresh" else 0)
    prompts = generator.integers(2, WORDS, (PROMPTS, PROMPT)).astype(np.int32)
    sampling = Sampling(TOKENS, temperature=TEMPERATURES[name], ignore_eos=True)
    return [
        GenerateRequest(f"{number}-{at}-{i}", prompt, sampling)
        for at, prompt in enumerate(prompts)
        for i in range(SAMPLES)
    ]


async def sampled(side: TorchEngine, asked: list[GenerateRequest]) -> list[GenerateResult]:
    """All of them at once."""
    return list(await asyncio.gather(*(side.generate(request) for request in asked)))


async def compared(folder: Path, place: Path, name: str, pairs: int) -> dict[str, float]:
    """`speedup`, `wall`, `spread`, `forwards_per_token` and `accepted` of a kind of text, after one round for each side."""
    sides = [engine(place, speculation) for speculation in ("none", "history")]
    cpu: list[list[float]] = [[], []]
    wall: list[list[float]] = [[], []]
    for side in sides:
        await side.start(folder)
        await sampled(side, rounds(name, 0))
    try:
        before = await sides[1].health()
        for number in range(1, pairs + 1):
            for side, seconds, walls in zip(sides, cpu, wall, strict=True):
                began, cpu_began = time.perf_counter(), time.process_time()
                await sampled(side, rounds(name, number))
                seconds.append(time.process_time() - cpu_began)
                walls.append(time.perf_counter() - began)
        after = await sides[1].health()
    finally:
        for side in sides:
            await side.close()
    rows, accepted, drafted = (
        after[field] - before[field]
        for field in ("decoded_rows", "accepted_tokens", "drafted_tokens")
    )
    return {
        "speedup": round(ratio(*cpu), 3),
        "wall": round(ratio(*wall), 3),
        "spread": round(spread(*cpu), 3),
        "forwards_per_token": round(rows / (rows + accepted), 3),
        "accepted": round(accepted / max(1.0, drafted), 3),
    }


@contextmanager
def every_draft_verified() -> Iterator[None]:
    """Whatever it costs."""
    chosen = DraftLengths.choose
    DraftLengths.choose = lambda self, kind, lengths: lengths  # type: ignore[method-assign]
    try:
        yield
    finally:
        DraftLengths.choose = chosen  # type: ignore[method-assign]


def tested_against_exact(folder: Path, place: Path, tokens: int) -> dict[str, float]:
    """`p_value` and its fields."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    generator = np.random.default_rng(0)
    even: list[npt.NDArray[np.float64]] = []
    accepted = 0.0

    async def sample_all() -> None:
        nonlocal accepted
        side = engine(place, "history", max_batch=BATCH)
        await side.start(folder)
        try:
            for number in range(-(-tokens // (BATCH * LENGTH))):
                prompts = generator.integers(2, SMALL_WORDS, (BATCH // GROUP, 4)).astype(np.int32)
                asked = [
                    GenerateRequest(
                        f"{number}-{n}",
                        prompts[n % len(prompts)],
                        Sampling(LENGTH, ignore_eos=True),
                    )
                    for n in range(BATCH)
                ]
                even.append(places(model, asked, await sampled(side, asked), generator))
            accepted = (await side.health())["accepted_tokens"]
        finally:
            await side.close()

    with every_draft_verified():
        asyncio.run(sample_all())
    found = np.concatenate(even)
    return {
        "p_value": round(p_value(found), 4),
        "tested_tokens": len(found),
        "tested_accepted": round(accepted / len(found), 3),
    }


@torch.no_grad()
def places(
    model: Any,
    asked: list[GenerateRequest],
    results: list[GenerateResult],
    generator: np.random.Generator,
) -> npt.NDArray[np.float64]:
    """A number from the interval of each sampled token in its cumulative distribution."""
    whole = np.stack(
        [
            np.concatenate([request.prompt, result.tokens])
            for request, result in zip(asked, results, strict=True)
        ]
    ).astype(np.int64)
    start = len(asked[0].prompt)
    probs = model(torch.from_numpy(whole)).logits[:, start - 1 : -1].softmax(-1).numpy()
    tokens = whole[:, start:, None]
    own = np.take_along_axis(probs, tokens, 2)[..., 0]
    below = np.take_along_axis(probs.cumsum(-1), tokens, 2)[..., 0] - own
    return np.asarray(below + own * generator.random(own.shape)).ravel()


def p_value(even: npt.NDArray[np.float64]) -> float:
    """Of the chi-square test that numbers are even in [0, 1)."""
    counts = np.histogram(even, bins=BINS, range=(0, 1))[0]
    expected = len(even) / BINS
    statistic = float(((counts - expected) ** 2).sum() / expected)
    half = torch.tensor([(BINS - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))
