from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from astraflow_core.types import GenerateRequest, Sampling
from astraflow_plugin_torch_engine.engine import TorchEngine

Serve = Callable[..., AbstractAsyncContextManager[TorchEngine]]
WriteModel = Callable[..., Path]
EOS = 1


def reference(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


async def sampled(engine: TorchEngine, tokens: int) -> None:
    """Wait until the engine has sampled so many tokens in all."""
    async with asyncio.timeout(20):
        while (await engine.health())["tokens_generated"] < tokens:
            await asyncio.sleep(0)


def prompt(*ids: int) -> np.ndarray:
    return np.array(ids, dtype=np.int32)


def greedy_reference(folder: Path, ids: np.ndarray, new: int) -> list[int]:
    start = torch.from_numpy(ids.astype(np.int64))[None]
    out = reference(folder).generate(start, do_sample=False, max_new_tokens=new)
    return list(out[0, len(ids) :].tolist())


def full_logprobs(
    folder: Path, ids: np.ndarray, sampled_ids: np.ndarray, temperature: float
) -> np.ndarray:
    """Of one Hugging Face forward pass over prompt and completion."""
    whole = torch.from_numpy(np.concatenate([ids, sampled_ids]).astype(np.int64))
    with torch.no_grad():
        logits = reference(folder)(whole[None]).logits[0].double() / temperature
    logprobs = logits.log_softmax(-1)[len(ids) - 1 : -1]
    return np.asarray(logprobs.gather(-1, whole[len(ids) :, None])[:, 0])


@pytest.mark.parametrize(
    ("kind", "tie"),
    [
        ("qwen3", True),
        pytest.param("qwen3", False, marks=pytest.mark.slow),
        pytest.param("llama", False, marks=pytest.mark.slow),
    ],
)
def test_greedy_equals_generate_on_ragged_prompts_that_join_late(
    tmp_path: Path, serve: Serve, write_model: WriteModel, kind: str, tie: bool
) -> None:
    folder = write_model(tmp_path / "m", kind, tie)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(2, 32, n).astype(np.int32) for n in (3, 9, 1, 30, 5, 5, 12, 2, 17)]
    lengths = [40, 3, 25, 60, 1, 33, 20, 50, 8]

    async def main() -> list[list[int]]:
        async with serve(folder, max_batch=4) as engine:
            tasks = []
            for number, (ids, new) in enumerate(zip(prompts, lengths, strict=True)):
                request = GenerateRequest(str(number), ids, Sampling(new, temperature=0))
                tasks.append(asyncio.create_task(engine.generate(request)))
                await sampled(engine, 6 * number)
            return [(await task).tokens.tolist() for task in tasks]

    got = asyncio.run(main())
    assert got == [greedy_reference(folder, i, n) for i, n in zip(prompts, lengths, strict=True)]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(20, ignore_eos=True),
        Sampling(20, temperature=0.7, ignore_eos=True),
        Sampling(20, temperature=1.3, top_p=0.8, top_k=5, min_p=0.02, ignore_eos=True),
        Sampling(20, temperature=0, ignore_eos=True),
    ],
)
def test_logprobs_follow_the_declared_semantics(
    folder: Path, serve: Serve, sampling: Sampling
) -> None:
    async def main() -> None:
        async with serve(folder) as engine:
            assert (engine.logprob_semantics.temperature, engine.logprob_semantics.truncation) == (
                True,
                False,
            )
            prompts = [prompt(*range(2, 3 + n)) for n in range(8)]
            results = await asyncio.gather(
                *(engine.generate(GenerateRequest("r", ids, sampling)) for ids in prompts)
            )
        for ids, result in zip(prompts, results, strict=True):
            expected = full_logprobs(folder, ids, result.tokens, sampling.temperature or 1.0)
            np.testing.assert_allclose(result.logprobs, expected, atol=1e-5)
            assert result.finish_reason == "length"
            assert result.versions.tolist() == [0] * 20

    asyncio.run(main())


def test_score_equals_a_full_forward_pass(
    folder: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = np.random.default_rng(0).integers(2, 32, 70).astype(np.int32)

    async def main() -> np.ndarray:
        async with serve(folder) as engine:
            assert (await engine.score(ids[:1])).tolist() == [0.0]
            return await engine.score(ids)

    expected = full_logprobs(folder, ids[:1], ids[1:], 1.0)
    np.testing.assert_allclose(asyncio.run(main())[1:], expected, atol=1e-5)
    monkeypatch.setattr("astraflow_plugin_torch_engine.model._SCORE_CHUNK", 16)
    np.testing.assert_allclose(asyncio.run(main())[1:], expected, atol=1e-5)


def test_equal_prompts_of_one_admission_are_prefilled_once(folder: Path, serve: Serve) -> None:
    async def main() -> None:
        async with serve(folder) as engine:
            await engine.pause("keep")
            requests = [
                GenerateRequest(str(i), prompt(5, 6, 7 + i % 2), Sampling(4)) for i in range(16)
            ]
            tasks = [asyncio.create_task(engine.generate(request)) for request in requests]
            await asyncio.sleep(0)
            await engine.resume()
            results = await asyncio.gather(*tasks)
            health = await engine.health()
        assert (health["prompt_tokens"], health["prefill_tokens"]) == (48, 6)
        assert health["tokens_generated"] == sum(len(result.tokens) for result in results)
        assert len({tuple(result.tokens) for result in results}) > 2

    asyncio.run(main())


def test_stop_conditions(folder: Path, serve: Serve) -> None:
    start = prompt(7, 3, 9)
    free = greedy_reference(folder, start, 20)
    free = free[: free.index(EOS)] if EOS in free else free

    async def run(sampling: Sampling) -> tuple[list[int], str]:
        async with serve(folder) as engine:
            # A neighbour with a longer stop sequence, so that the rows' tables differ in width.
            neighbour = Sampling(12, stop_sequences=((30, 30, 30, 30),), ignore_eos=True)
            other = engine.generate(GenerateRequest("n", prompt(4), neighbour))
            result, _ = await asyncio.gather(
                engine.generate(GenerateRequest("r", start, sampling)), other
            )
            return result.tokens.tolist(), result.finish_reason

    def first_end(stop: tuple[int, ...]) -> int:
        ends = range(len(stop), len(free) + 1)
        return next(end for end in ends if tuple(free[end - len(stop) : end]) == stop)

    single, pair = free[4], (free[2], free[3])
    token = Sampling(20, temperature=0, ignore_eos=True, stop_token_ids=(single,))
    assert asyncio.run(run(token)) == (free[: first_end((single,))], "stop")
    sequence = Sampling(20, temperature=0, ignore_eos=True, stop_sequences=((31, 31, 31), pair))
    assert asyncio.run(run(sequence)) == (free[: first_end(pair)], "stop")
    assert (3, 9) not in itertools.pairwise(free)
    # A sequence that only begins in the prompt has not appeared in what was sampled.
    straddling = Sampling(4, temperature=0, ignore_eos=True, stop_sequences=((3, 9, free[0]),))
    assert asyncio.run(run(straddling)) == (free[:4], "length")


def test_the_models_own_end_of_sequence(folder: Path, serve: Serve) -> None:
    async def main() -> None:
        async with serve(folder) as engine:
            until = [Sampling(60), Sampling(60, ignore_eos=True)]
            results = await asyncio.gather(
                *(
                    engine.generate(GenerateRequest("r", prompt(4, 8), until[i % 2]))
                    for i in range(64)
                )
            )
        ended = [r for r in results[::2] if r.finish_reason == "stop"]
        assert ended
        assert all(r.tokens[-1] == EOS and EOS not in r.tokens[:-1] for r in ended)
        assert any(EOS in r.tokens for r in results[1::2])
        assert {len(r.tokens) for r in results[1::2]} == {60}

    asyncio.run(main())


def test_what_cannot_be_served_is_refused(folder: Path, serve: Serve) -> None:
    async def main() -> None:
        async with serve(folder) as engine:
            assert engine.context_length == 96
            full = GenerateRequest("full", np.full(90, 5, np.int32), Sampling(6, ignore_eos=True))
            assert len((await engine.generate(full)).tokens) == 6
            for bad, message in [
                (
                    GenerateRequest("r", np.full(90, 5, np.int32), Sampling(7)),
                    "context length of 96",
                ),
                (GenerateRequest("r", prompt(), Sampling(1)), "no tokens"),
                (GenerateRequest("r", prompt(32), Sampling(1)), "outside"),
                (GenerateRequest("r", prompt(5), Sampling(0)), "max_tokens"),
            ]:
                with pytest.raises(ValueError, match=message):
                    await engine.generate(bad)

    asyncio.run(main())


def test_a_small_cache_makes_requests_wait_and_serves_them_all(folder: Path, serve: Serve) -> None:
    # 2 layers × 2 (keys, values) × 2 heads × 8 × 4 bytes = 256 bytes per token: room for 128 tokens.
    async def main() -> None:
        async with serve(folder, cache_gb=150 * 256 / 2**30) as engine:
            greedy = Sampling(50, temperature=0, ignore_eos=True)
            prompts = [prompt(4 + i, 9) for i in range(6)]
            tasks = [
                asyncio.create_task(engine.generate(GenerateRequest(str(i), ids, greedy)))
                for i, ids in enumerate(prompts)
            ]
            await sampled(engine, 3)
            health = await engine.health()
            assert (health["running"], health["waiting"]) == (2, 4)
            results = await asyncio.gather(*tasks)
        async with serve(folder) as engine:
            for ids, result in zip(prompts, results, strict=True):
                alone = await engine.generate(GenerateRequest("r", ids, greedy))
                assert alone.tokens.tolist() == result.tokens.tolist()

    asyncio.run(main())


def test_the_same_seed_gives_the_same_tokens(folder: Path, serve: Serve) -> None:
    async def main(seed: int) -> list[int]:
        async with serve(folder, seed=seed) as engine:
            request = GenerateRequest("r", prompt(4, 5), Sampling(30, ignore_eos=True))
            return (await engine.generate(request)).tokens.tolist()

    assert asyncio.run(main(1)) == asyncio.run(main(1))
    assert asyncio.run(main(1)) != asyncio.run(main(2))


@pytest.mark.parametrize(
    ("device", "dtype", "tolerance"),
    [
        ("cpu", "bfloat16", 0.2),
        pytest.param("cuda", "float32", 1e-3, marks=pytest.mark.gpu),
        pytest.param("cuda", "bfloat16", 0.2, marks=pytest.mark.gpu),
    ],
)
def test_other_devices_and_dtypes(
    folder: Path, serve: Serve, device: str, dtype: str, tolerance: float
) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")

    async def main() -> None:
        async with serve(folder, device=device, dtype=dtype) as engine:
            sampling = [Sampling(20 + i, ignore_eos=True, top_p=0.9) for i in range(8)]
            prompts = [prompt(*range(2, 3 + i)) for i in range(8)]
            results = await asyncio.gather(
                *(
                    engine.generate(GenerateRequest("r", ids, keys))
                    for ids, keys in zip(prompts, sampling, strict=True)
                )
            )
            for ids, result in zip(prompts, results, strict=True):
                expected = full_logprobs(folder, ids, result.tokens, 1.0)
                assert np.abs(result.logprobs - expected).mean() < tolerance
                scores = await engine.score(np.concatenate([ids, result.tokens]))
                assert np.abs(scores[len(ids) :] - expected).mean() < tolerance

    asyncio.run(main())


def test_a_sliding_window_bounds_the_context(folder: Path, tmp_path: Path, serve: Serve) -> None:
    config = AutoConfig.from_pretrained(folder)
    config.sliding_window, config.use_sliding_window = 24, True
    config.layer_types = ["full_attention", "sliding_attention"]
    AutoModelForCausalLM.from_pretrained(folder, config=config).save_pretrained(tmp_path)

    async def main() -> list[int]:
        async with serve(tmp_path) as engine:
            assert engine.context_length == 24
            request = GenerateRequest("r", prompt(4, 5), Sampling(22, temperature=0))
            return (await engine.generate(request)).tokens.tolist()

    assert asyncio.run(main()) == greedy_reference(tmp_path, prompt(4, 5), 22)
