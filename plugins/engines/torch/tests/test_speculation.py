"""Speculation changes how many tokens a forward pass gives, and nothing else."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from astraflow_core.types import GenerateRequest, GenerateResult, Sampling, WeightSource
from astraflow_plugin_torch_engine.config import TorchEngineConfig
from astraflow_plugin_torch_engine.engine import TorchEngine
from astraflow_plugin_torch_engine.speculation.history import (
    CONTEXT,
    LONGEST,
    ORDERS,
    TokenHistory,
    new_readers,
)
from astraflow_plugin_torch_engine.speculation.lengths import DraftLengths
from astraflow_plugin_torch_engine.speculation.stored import of_like_lengths, stored_spans
from astraflow_testing.conformance.engine import EngineConformance, Subject, installed

Serve = Callable[..., AbstractAsyncContextManager[TorchEngine]]
WORDS = 32


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every draft is verified, all of it, whatever it costs."""
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
    asked = requests(SAMPLINGS, rounds=2)
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


def test_logprobs_of_verified_tokens_are_the_scores(
    serve: Serve, folder: Path, always: None
) -> None:
    async def main() -> None:
        async with serve(folder) as engine:
            asked = requests([Sampling(60, ignore_eos=True)] * 4, rounds=2)
            results = await sampled(engine, asked)
            assert (await engine.health())["accepted_tokens"] > 0
            for request, result in zip(asked[::5], results[::5], strict=True):
                scores = await engine.score(np.concatenate([request.prompt, result.tokens]))
                np.testing.assert_allclose(
                    result.logprobs, scores[len(request.prompt) :], atol=1e-4
                )

    asyncio.run(main())


@pytest.mark.slow
def test_sampled_tokens_are_of_the_exact_distribution(
    serve: Serve, folder: Path, always: None
) -> None:
    """10,000 tokens, with drafts also from stored sequences that favour likely ones; a million are in ``bench.speculative``."""
    asked = [
        GenerateRequest(
            str(n), np.array([2 + n % 8, 5, 9], np.int32), Sampling(80, ignore_eos=True)
        )
        for n in range(125)
    ]

    likely = [
        replace(request, sampling=Sampling(80, temperature=0.5, ignore_eos=True))
        for request in asked[:32]
    ]

    async def main() -> tuple[list[GenerateResult], dict[str, float]]:
        async with serve(folder, max_batch=64) as engine:
            learned = stored(likely, await sampled(engine, likely))
        async with serve(folder, max_batch=64) as engine:
            await engine.learn_drafts(*learned)
            return await sampled(engine, asked), await engine.health()

    results, health = asyncio.run(main())
    assert health["learned_tokens"] == 32 * 80
    assert health["accepted_tokens"] > 300
    whole = np.stack(
        [
            np.concatenate([request.prompt, result.tokens])
            for request, result in zip(asked, results, strict=True)
        ]
    ).astype(np.int64)
    with torch.no_grad():
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
        probs = model(torch.from_numpy(whole)).logits[:, 2:-1].softmax(-1).numpy()
    tokens = whole[:, 3:, None]
    own = np.take_along_axis(probs, tokens, 2)[..., 0]
    below = np.take_along_axis(probs.cumsum(-1), tokens, 2)[..., 0] - own
    # A number drawn evenly from each token's interval of the cumulative distribution is even in [0, 1).
    even = below + own * np.random.default_rng(0).random(own.shape)
    counts = np.histogram(even, bins=50, range=(0, 1))[0]
    expected = even.size / 50
    assert ((counts - expected) ** 2 / expected).sum() < 95  # the 0.9999 quantile for 49 degrees


def test_a_swap_between_two_verified_drafts_is_as_between_two_tokens(
    serve: Serve, folder: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = Sampling(80, temperature=0, ignore_eos=True)
    asked = [GenerateRequest(str(n), np.array([7, 3, 9], np.int32), sampling) for n in range(3)]
    source = WeightSource("p", 1, other / "model.safetensors", "", 0, 0.0)
    reached, paused, looks = threading.Event(), threading.Event(), itertools.count()
    armed = False

    def choose(self: DraftLengths, kind: np.ndarray, lengths: np.ndarray) -> Any:
        if armed and next(looks) == 3:
            reached.set()
            assert paused.wait(20)
        return np.minimum(lengths, 7)

    monkeypatch.setattr(DraftLengths, "choose", choose)

    async def main() -> list[GenerateResult]:
        nonlocal armed
        async with serve(folder) as engine:
            await sampled(engine, asked)  # so that drafts are of these very tokens
            armed = True
            before = (await engine.health())["accepted_tokens"]
            tasks = [asyncio.create_task(engine.generate(request)) for request in asked]
            assert await asyncio.to_thread(reached.wait, 20)
            pausing = asyncio.create_task(engine.pause("keep"))
            await asyncio.sleep(0)
            paused.set()
            await pausing
            assert (await engine.health())["accepted_tokens"] > before
            await engine.load_weights(source)
            await engine.resume()
            return [await task for task in tasks]

    results = asyncio.run(main())
    swap = int((results[0].versions == 0).sum())
    assert 8 < swap < 80
    # By hand: the old weights, and from the swap on the new ones over the old keys and values.
    old, new = (
        AutoModelForCausalLM.from_pretrained(f, dtype=torch.float32) for f in (folder, other)
    )
    cache, pending, tokens = None, torch.tensor([[7, 3, 9]]), []
    for number in range(80):
        with torch.no_grad():
            out = (old if number < swap else new)(pending, past_key_values=cache, use_cache=True)
        cache, pending = out.past_key_values, out.logits[:, -1].argmax(-1)[None]
        tokens.append(int(pending))
    for result in results:
        assert result.versions.tolist() == [0] * swap + [1] * (80 - swap)
        assert result.tokens.tolist() == tokens


def test_exact_log_probs_stay_exact(serve: Serve, folder: Path, always: None) -> None:
    asked = requests([Sampling(30, temperature=0.3, ignore_eos=True)] * 2, rounds=2)
    plain, found, health = both(serve, folder, asked, batch_invariant=True)
    assert health["accepted_tokens"] > 0
    for one, another in zip(plain, found, strict=True):
        assert another.tokens.tolist() == one.tokens.tolist()
        assert another.logprobs.tobytes() == one.logprobs.tobytes()


# Drafts from elsewhere


def stored(asked: list[GenerateRequest], results: list[GenerateResult]) -> tuple[Any, ...]:
    """What ``learn_drafts`` takes, of sequences that a rollout store would have."""
    pairs = [(r.prompt, result.tokens) for r, result in zip(asked, results, strict=True)]
    sampled = [np.repeat([False, True], [len(prompt), len(tokens)]) for prompt, tokens in pairs]
    tokens = np.concatenate([part for pair in pairs for part in pair]).astype(np.int32)
    return tokens, np.concatenate(sampled), [len(flags) for flags in sampled]


def test_an_engine_that_was_restarted_drafts_from_stored_sequences_and_samples_the_same(
    serve: Serve, folder: Path, always: None
) -> None:
    samplings = [Sampling(40, temperature=0, ignore_eos=True), Sampling(40, temperature=0.3)]
    prompts = [
        replace(request, prompt=request.prompt + n)
        for n, request in enumerate(requests(samplings)[:3])
    ]
    asked = [replace(prompts[0]), replace(prompts[1])]

    async def run(learned: tuple[Any, ...] | None, **keys: Any) -> Any:
        async with serve(folder, **keys) as engine:
            if learned is not None:
                assert await engine.learn_drafts(*learned) is (keys.get("speculation") is None)
            results = [await engine.generate(request) for request in asked]
            return results, await engine.health()

    first, plain = asyncio.run(run(None))
    learned = stored(asked, first)
    again, drafted = asyncio.run(run(learned))
    without, off = asyncio.run(run(learned, speculation="none"))
    for one, other, third in zip(first, again, without, strict=True):
        assert other.tokens.tolist() == one.tokens.tolist() == third.tokens.tolist()
    tokens = sum(len(result.tokens) for result in first)
    assert drafted["learned_tokens"] == tokens
    assert drafted["accepted_tokens"] > plain["accepted_tokens"] + 0.4 * tokens
    assert off["accepted_tokens"] == 0


def test_stored_sequences_that_are_wrong_change_nothing(
    serve: Serve, folder: Path, always: None
) -> None:
    asked = requests(SAMPLINGS[:4])
    generator = np.random.default_rng(0)
    wrong = generator.integers(2, 27, 4000).astype(np.int32)

    async def run(learn: bool) -> Any:
        async with serve(folder) as engine:
            if learn:
                await engine.learn_drafts(wrong, generator.random(4000) < 0.9, [1000] * 4)
            return await sampled(engine, asked), await engine.health()

    (plain, _), (found, health) = asyncio.run(run(False)), asyncio.run(run(True))
    assert health["drafted_tokens"] > health["accepted_tokens"]
    for one, other in zip(plain, found, strict=True):
        assert other.tokens.tolist() == one.tokens.tolist()


def test_stored_sequences_of_another_model_are_refused(serve: Serve, folder: Path) -> None:
    some = np.arange(4, dtype=np.int32)
    flags = np.ones(4, np.bool_)

    async def main() -> None:
        async with serve(folder) as engine:
            with pytest.raises(ValueError, match=r"token ids from 0 to 99; expected 0 to .*redact"):
                await engine.learn_drafts(np.array([0, 99], np.int32), flags[:2], [2])
            with pytest.raises(ValueError, match="4 tokens and 4 flags; expected 5"):
                await engine.learn_drafts(some, flags, [5])
            # What was not sampled may be anything, such as the place of an image.
            assert await engine.learn_drafts(some - 7, np.arange(4) == 9, [2, 2])
            assert await engine.learn_drafts(some[:0], flags[:0], [])
            assert (await engine.health())["learned_tokens"] == 0

    asyncio.run(main())
    with pytest.raises(ValueError, match='stored_drafts_kb needs speculation = "history"'):
        TorchEngineConfig(speculation="none", stored_drafts_kb=64)


def test_spans_are_split_by_turn_and_sequence() -> None:
    tokens = np.arange(10, dtype=np.int32)
    sampled = np.array([0, 1, 1, 0, 1, 1, 1, 0, 0, 1], np.bool_)
    found = stored_spans(tokens, sampled, [6, 0, 4], 10)
    assert [(p.tolist(), t.tolist()) for p, t in found] == [
        ([0], [1, 2]),
        ([0, 1, 2, 3], [4, 5]),
        ([], [6]),
        ([6, 7, 8], [9]),
    ]
    lots = [[len(t) for _, t in lot] for lot in of_like_lengths(found)]
    assert lots == [[1, 1], [2, 2]]


# The history


def text(prompt: list[int], tokens: list[int]) -> np.ndarray:
    return np.array([([-1] * CONTEXT + prompt)[-CONTEXT:] + tokens], np.int32)


def remember(history: TokenHistory, prompt: list[int], tokens: list[int], scope: int = 1) -> None:
    readers = new_readers(np.array([scope], np.uint64))
    history.extend(text(prompt, tokens), np.array([len(tokens)]), readers)


def guess(history: TokenHistory, tokens: list[int], scope: int = 1) -> tuple[list[int], int]:
    """The draft after ``tokens`` and how many of them it was found by, 0 for none."""
    (drafts, kind) = history.propose(text(tokens, []), np.array([scope], np.uint64))
    orders = [*(order for order, _ in ORDERS), 0]
    return [token for token in drafts[0].tolist() if token >= 0], orders[int(kind[0])]


def test_the_longest_match_is_proposed_across_blocks_and_calls() -> None:
    history = TokenHistory(4096)
    tokens = [(7 * n) % 101 for n in range(100)]
    readers = new_readers(np.array([1], np.uint64))
    for end in (3, 16, 17, 60, 100):  # as they are sampled
        history.extend(text([5, 6], tokens), np.array([end]), readers)
    for at in (20, 31, 32, 33, 60):
        assert guess(history, tokens[at - 20 : at]) == (tokens[at : at + LONGEST], 16)
    assert guess(history, [5, 6]) == (tokens[:LONGEST], 16)  # a prompt and nothing before it
    assert guess(history, [77] * 12 + tokens[30:34]) == (tokens[34:49], 4)
    assert guess(history, [77] * 12 + tokens[30:34], scope=2) == (
        [],
        0,
    )  # too short for another prompt
    assert guess(history, [77] * 12 + tokens[30:38], scope=2) == (tokens[38:53], 8)
    assert guess(history, tokens[-20:]) == ([], 0)
    remember(history, tokens[20:30], [1, 2, 3])  # the newer one counts
    assert guess(history, tokens[22:30])[0] == [1, 2, 3]


def test_old_text_is_overwritten_in_bounded_memory() -> None:
    history = TokenHistory(1024)
    size = history.nbytes
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, 10_000, 40).tolist() for _ in range(200)]
    for each in texts:
        remember(history, [], each)
    assert guess(history, texts[-1][:20]) == (texts[-1][20:35], 16)
    assert guess(history, texts[0][:20]) == ([], 0)
    assert history.nbytes == size
    long = rng.integers(0, 10_000, 5000).tolist()  # longer than all that is kept
    remember(history, [], long)
    assert guess(history, long[4900:4920])[0] == long[4920:4935]
    assert guess(history, long[:20]) == ([], 0)


# The lengths


def taught(rows: int, chance: float, per_token: float, plain: float = 1.0) -> DraftLengths:
    """After steps in which a token of the best kind was right with ``chance``, and a drafted token cost ``per_token``."""
    lengths = DraftLengths()
    kind = np.zeros(rows, np.int64)
    for step in range(30):
        drafted = 4 * rows * (step % 2)
        lengths.observe_step(rows, drafted, plain + per_token * drafted)
        lengths.observe_drafts(
            kind, np.full(rows, int(100 * chance)), np.full(rows, int(100 - 100 * chance))
        )
    return lengths


def test_a_token_is_verified_if_its_chance_is_worth_its_cost() -> None:
    kind, long = np.zeros(4, np.int64), np.full(4, LONGEST)
    free = taught(4, 0.9, 0.0).choose(kind, long)
    assert free is not None
    assert free.tolist() == [LONGEST] * 4
    # Tokens a second without drafts: 4. A token that costs 0.15 s must bring more than 0.6.
    some = taught(4, 0.9, 0.15).choose(kind, long)
    assert some is not None
    assert some.max() < np.log(0.6) / np.log(0.9)
    assert some.min() >= 1
    assert taught(4, 0.9, 0.3).choose(kind, long) is None
    assert taught(4, 0.1, 0.02).choose(kind, long) is None
    short = taught(4, 0.9, 0.0).choose(kind, np.array([2, 0, LONGEST, 1]))
    assert short is not None
    assert short.tolist() == [2, 0, LONGEST, 1]
    nothing = np.full(4, len(ORDERS))
    assert taught(4, 0.9, 0.0).choose(nothing, np.zeros(4, np.int64)) is None


def test_it_goes_on_a_little_longer_than_it_would_begin() -> None:
    kind, long = np.zeros(4, np.int64), np.full(4, 1)

    def gain(lengths: DraftLengths, chance: float) -> bool:
        lengths._right[0], lengths._tried[0] = 100 * chance, 100
        return lengths.choose(kind, long) is not None

    lengths = taught(4, 0.9, 0.1)  # one token of each row costs 0.4 beside 1
    begins, stays = 0.55, 0.45
    assert not gain(lengths, stays)
    assert not gain(lengths, 0.49)
    assert gain(lengths, begins)
    assert gain(lengths, stays)
    assert not gain(lengths, 0.35)
    assert not gain(lengths, stays)


def test_fresh_text_is_decoded_as_without(serve: Serve, folder: Path) -> None:
    asked = [
        GenerateRequest(
            str(n), np.array([2 + n], np.int32), Sampling(60, temperature=50.0, ignore_eos=True)
        )
        for n in range(8)
    ]
    _, results, health = both(serve, folder, asked)
    assert health["drafted_tokens"] == 0
    assert health["decoded_rows"] == sum(len(result.tokens) for result in results) - len(asked)


@pytest.mark.slow
@pytest.mark.usefixtures("always")
class TestSpeculatingEngine(EngineConformance):
    """The suite with every draft verified: pauses, swaps, aborts, stops and experts."""

    @pytest.fixture
    def component(self) -> Subject:
        found = installed("engine", "torch", {"device": "cpu", "speculation": "history"})
        # ``test_conformance.py`` and ``test_images.py`` show these.
        elsewhere = {"images", "lora", "weights.ipc", "weights.collective"}
        return replace(found, capabilities=found.capabilities - elsewhere)
