"""The savings from drafts in the engine `torch`, and a check that they do not change the tokens.

A model of four layers samples `PROMPTS` prompts `SAMPLES` times each, `TOKENS` tokens, with ``speculation = "none"`` and with
``"history"``, in turn. Its weights are constructed so that it writes phrases of `PHRASE` tokens, after each of which it
chooses one of `FORKS` others evenly: 0.13 nats a token. `speedup_repetitive`: CPU seconds without drafts over those
with them, the same prompts in each round. `speedup_fresh`: the same of text that nobody has seen, other prompts in each
round and at a temperature where all tokens are about as likely. `wall_…`: the same in wall seconds.
`forwards_per_token_…`: how often a row was in a forward pass for each token that it got from one; 1 without drafts.
`accepted_…`: right tokens of those drafted. Medians of interleaved pairs, which have `spread_…`.

`restart_speedup_…`, `restart_wall_…`: of the first round of an engine that has just started, CPU and wall seconds without what the
rollout store has of its prompts over those with it, which is read from disk, framed and indexed meanwhile; the store has one round of
the same prompts. `restart_forwards_per_token_…` and, without the store, `…_without_…`, as above. `restart_same`: 1 if greedy tokens
with and without it are equal.

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
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from astraflow_core.types import (
    GenerateRequest,
    GenerateResult,
    Group,
    Sampling,
    Sequence,
    Trajectory,
)
from astraflow_plugin_torch_engine.config import TorchEngineConfig
from astraflow_plugin_torch_engine.engine import TorchEngine
from astraflow_plugin_torch_engine.speculation.lengths import DraftLengths
from astraflow_runtime.rollouts.building import line_of
from astraflow_runtime.rollouts.building import trajectories as trajectories_of
from astraflow_runtime.rollouts.earlier import EarlierGroups
from astraflow_runtime.rollouts.records import GroupRecord
from astraflow_runtime.rollouts.segments import SegmentWriter, encode
from astraflow_testing.conformance.subject import context
from astraflow_tiny_model.folder import write_tiny_model
from astraflow_wire.groups import ReceivedGroup, encode_group
from astraflow_wire.http.drafts import decode_drafts, encode_drafts
from bench.support.timing import ratio, spread

SIZES: dict[str, Any] = {"hidden": 256, "layers": 4, "heads": 4, "context": 512, "tie": False}
WORDS, PHRASE, FORKS = 512, 16, 8
CERTAIN = 12.0
"""Logit of what comes next, beside others around 0."""
ALPHABET = "".join(chr(0x4E00 + number) for number in range(WORDS))
PROMPTS, SAMPLES, PROMPT, TOKENS = 4, 4, 16, 128
TEMPERATURES = {"repetitive": 1.0, "fresh": 20.0}
SMALL: dict[str, Any] = {"hidden": 32, "layers": 2, "head_dim": 8, "context": 128, "init_std": 0.3}
WRITER, STORED_BYTES = "dataflow", 64_000
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
        for name in TEMPERATURES:
            measured = asyncio.run(restarted(folder, place, name, pairs))
            found |= {f"restart_{field}_{name}": value for field, value in measured.items()}
        found["restart_same"] = asyncio.run(restart_same(folder, place))
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


def engine(place: Path, speculation: str, seed: int = 0, **keys: Any) -> TorchEngine:
    """Not started."""
    config = TorchEngineConfig.model_validate({"device": "cpu", "speculation": speculation, **keys})
    return TorchEngine(config, replace(context("engine", place), seed=seed))


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


def stored(folder: Path, asked: list[GenerateRequest], results: list[GenerateResult]) -> None:
    """Write the groups of a round to a rollout store."""
    writer = SegmentWriter(folder, WRITER, 1 << 30)
    for number in range(PROMPTS):
        at = slice(number * SAMPLES, (number + 1) * SAMPLES)
        pairs = zip(asked[at], results[at], strict=True)
        trajectories = [
            Trajectory((sequence(r.prompt, found),), rewards={"policy": 0.0}) for r, found in pairs
        ]
        body = encode_group(Group(f"train-{number}", str(number), tuple(trajectories)), "raas-0")
        record = GroupRecord(
            number=number,
            group=f"train-{number}",
            time_s=0.0,
            raas="raas-0",
            prompt_id=str(number),
            prompt_data={},
            accepted=True,
            trajectories=trajectories_of(ReceivedGroup(body)),
            verdicts=[],
            newest={},
        )
        assert writer.append(line_of(record), encode(record))
    writer.close()


def sequence(prompt: Tokens, found: GenerateResult) -> Sequence:
    """A prompt and what was sampled after it."""
    tokens = np.concatenate([prompt, found.tokens]).astype(np.int32)
    sampled = np.arange(len(tokens)) >= len(prompt)
    logprobs = np.concatenate([np.zeros(len(prompt), np.float32), found.logprobs])
    return Sequence("policy", tokens, sampled, logprobs, np.where(sampled, 0, -1).astype(np.int32))


async def learned(side: TorchEngine, store: EarlierGroups, prompt: int) -> None:
    """As a RaaS does when a task begins."""
    found = await asyncio.to_thread(store.find, str(prompt), {"policy": STORED_BYTES})
    given = decode_drafts(encode_drafts(found))
    tokens = np.concatenate([each.tokens for each in given])
    flags = np.concatenate([each.sampled for each in given])
    await side.learn_drafts(tokens, flags, [len(each.tokens) for each in given])


async def first_round(
    folder: Path,
    place: Path,
    store: EarlierGroups | None,
    asked: list[GenerateRequest],
    seed: int = 0,
) -> tuple[list[GenerateResult], dict[str, float]]:
    """Of a new engine: what it sampled, and its gauges with ``cpu`` and ``wall`` seconds of the round."""
    side = engine(place, "history", seed)
    await side.start(folder)
    try:
        began, cpu_began = time.perf_counter(), time.process_time()
        learning = [] if store is None else [learned(side, store, at) for at in range(PROMPTS)]
        results, _ = await asyncio.gather(sampled(side, asked), asyncio.gather(*learning))
        cpu, wall = time.process_time() - cpu_began, time.perf_counter() - began
        return results, {**await side.health(), "cpu": cpu, "wall": wall}
    finally:
        await side.close()


async def restarted(folder: Path, place: Path, name: str, pairs: int) -> dict[str, float]:
    """`speedup`, `wall`, `spread` and `forwards_per_token`, with and without, of the first round after a restart."""
    asked = rounds(name, 0)
    before, _ = await first_round(folder, place, None, asked)
    stored(place / name, asked, before)
    store = EarlierGroups(place / name, WRITER)
    gauges: list[list[dict[str, float]]] = [[], []]
    for number in range(1, pairs + 1):
        for side, there in zip(gauges, (None, store), strict=True):
            # Of another seed: what is stored is what the policy may say, not what it will.
            side.append((await first_round(folder, place, there, asked, seed=number))[1])
    cpu, wall = ([[each[key] for each in side] for side in gauges] for key in ("cpu", "wall"))
    without, with_store = (
        float(np.median([each["decoded_rows"] for each in side])) / (len(asked) * (TOKENS - 1))
        for side in gauges
    )
    return {
        "speedup": round(ratio(*cpu), 3),
        "wall": round(ratio(*wall), 3),
        "spread": round(spread(*cpu), 3),
        "forwards_per_token": round(with_store, 3),
        "forwards_per_token_without": round(without, 3),
    }


async def restart_same(folder: Path, place: Path) -> float:
    """1 if greedy tokens after a restart are the same with and without the store, drafts or not."""
    store = EarlierGroups(place / "repetitive", WRITER)
    asked = [
        replace(request, sampling=replace(request.sampling, temperature=0))
        for request in rounds("repetitive", 0)
    ]
    one, other = [(await first_round(folder, place, there, asked))[0] for there in (None, store)]
    return float(all((a.tokens == b.tokens).all() for a, b in zip(one, other, strict=True)))


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
