"""The engines compared with each other, with a bare vLLM server and with ``model.generate``, on SmolLM2 and a tiny model.

`raas_over_bare`: tokens per second of 16 equal requests (32 + 64 tokens) through the engine host of `vllm`, over
those of the same requests posted to the same server with no code of ours but the reading of the answers.
`blocked_over_empty_swap`: seconds from the call of pause to the return of resume, through the engine host with
every check, over the same calls of vLLM's protocol made bare; 8 requests are in flight. `torch_over_generate_ragged`:
tokens per second of engine `torch` over those of ``model.generate`` on padded batches, for 32 requests with prompts of 4
to 64 and completions of 8 to 128 tokens, at most 16 at once. `ENGINE_tokens_s` and `ENGINE_swap_s`: the same 16 requests and the same
swap through the engine host of each. `logprob_gap`: between vLLM's log-probs of what it sampled and the scores that
engine `torch` gives the same tokens with the same weights. Medians of interleaved rounds. Fields of the tiny model
begin with `tiny_`; a quick run has no others.

``python -m bench.support.engine_tables`` puts what was recorded into the READMEs of the engines.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np

from astraflow_core.catalog import Catalog
from astraflow_core.config.environments import cache_folder
from astraflow_core.types import GenerateRequest, GenerateResult, Sampling
from astraflow_plugin_vllm import requests
from astraflow_plugin_vllm.config import VllmConfig
from astraflow_plugin_vllm.server import VllmServer
from astraflow_runtime.launch.environments import create
from astraflow_runtime.models.resolver import ModelResolver
from astraflow_runtime.raas.engines.host_client import HostClient
from astraflow_serving.http import ServerClient
from astraflow_serving.model_folder import chunks
from astraflow_testing.conformance.subject import context, installed
from astraflow_tiny_model.folder import write_tiny_model
from bench.baselines.padded_generate import PaddedGenerate
from bench.support.hosted import hosted, swap
from bench.support.timing import ratio

BATCH, PROMPT, SAMPLED, IN_FLIGHT, CONTEXT = 16, 32, 64, 8, 1024
RAGGED, LONGEST_PROMPT, LONGEST_COMPLETION = 32, 64, 128
ROUNDS, QUICK_ROUNDS = 5, 2
MODEL = "pypi:SmolLM2-135M-Instruct"
_CACHE_GB = 0.25


def measure(quick: bool) -> dict[str, float]:
    """Start one server for each model and measure; the environment ``vllm`` is made if it is missing."""
    catalog = Catalog.discover()
    say = lambda text: print(text, file=sys.stderr)  # noqa: E731
    python = str(create("vllm", ["vllm"], catalog, say=say).interpreter)
    with tempfile.TemporaryDirectory(prefix="astraflow-bench-") as scratch:
        folder = Path(scratch)
        tiny = write_tiny_model(folder / "model", hidden=64, head_dim=32, context=CONTEXT)
        rounds = QUICK_ROUNDS if quick else ROUNDS
        found = asyncio.run(_measured(folder / "tiny", tiny, python, rounds))
        found = {f"tiny_{field}": value for field, value in found.items()}
        if not quick:
            model = ModelResolver(catalog).resolve_model(MODEL, 0, cache_folder())
            found |= asyncio.run(_measured(folder / "large", model, python, rounds))
        return found


async def _measured(folder: Path, model: Path, python: str, rounds: int) -> dict[str, float]:
    keys = {"max_batch": BATCH, "context_length": CONTEXT}
    server = VllmServer(
        VllmConfig(max_batch=BATCH, context_length=CONTEXT),
        model,
        folder / "vllm.log",
        0,
        python,
        cpu=True,
    )
    began = time.perf_counter()
    await server.start()
    found = {"start_s": round(time.perf_counter() - began, 1)}
    bare = ServerClient("vLLM server", server.url, 60)
    try:
        async with hosted(folder / "vllm", model, use="vllm", url=server.url, **keys) as client:
            found |= await _beside_bare(client, bare, model, rounds)
            results = await _results(client, SAMPLED)
    finally:
        await bare.close()
        await server.stop()
    own: dict[str, str | int | float] = {**keys, "device": "cpu", "cache_gb": _CACHE_GB}
    async with hosted(folder / "torch", model, use="torch", **own) as client:
        found |= await _alone("torch", client, model, rounds)
        found |= await _gap(client, results)
    async with hosted(folder / "hf", model, use="hf", **own) as client:
        found |= await _alone("hf", client, model, rounds)
    found["torch_over_generate_ragged"] = await over_generate(folder / "ragged", model, rounds)
    return found


async def _beside_bare(
    client: HostClient, bare: ServerClient, model: Path, rounds: int
) -> dict[str, float]:
    file = model / "model.safetensors"
    versions = iter(range(1, 1000))
    through = await _interleaved(
        rounds, lambda: _results(client, SAMPLED), lambda: _posted(bare, SAMPLED)
    )
    flying = asyncio.ensure_future(_results(client, CONTEXT - PROMPT, IN_FLIGHT))
    blocked = await _interleaved(
        rounds,
        lambda: swap(client, file, next(versions)),
        lambda: _bare_swap(bare, file, next(versions)),
    )
    flying.cancel()
    sampled = BATCH * SAMPLED
    return {
        "raas_over_bare": round(ratio(through[1], through[0]), 3),
        "blocked_over_empty_swap": round(ratio(blocked[0], blocked[1]), 3),
        "vllm_tokens_s": round(sampled / float(np.median(through[0])), 1),
        "bare_tokens_s": round(sampled / float(np.median(through[1])), 1),
        "vllm_swap_s": round(float(np.median(blocked[0])), 4),
    }


async def _alone(name: str, client: HostClient, model: Path, rounds: int) -> dict[str, float]:
    file = model / "model.safetensors"
    versions = iter(range(1, 1000))
    (sampling,) = await _interleaved(rounds, lambda: _results(client, SAMPLED))
    flying = asyncio.ensure_future(_results(client, CONTEXT - PROMPT, IN_FLIGHT))
    (swapping,) = await _interleaved(rounds, lambda: swap(client, file, next(versions)))
    flying.cancel()
    return {
        f"{name}_tokens_s": round(BATCH * SAMPLED / float(np.median(sampling)), 1),
        f"{name}_swap_s": round(float(np.median(swapping)), 4),
    }


async def _gap(client: HostClient, results: list[GenerateResult]) -> dict[str, float]:
    gaps = []
    for number, result in enumerate(results):
        whole = np.concatenate([_prompt(number, PROMPT), result.tokens])
        scores = await client.score(whole, 120)
        gaps.append(np.abs(scores[PROMPT:] - result.logprobs))
    gap = np.concatenate(gaps)
    return {"logprob_gap_mean": float(gap.mean()), "logprob_gap_max": float(gap.max())}


async def over_generate(folder: Path, model: Path, rounds: int, device: str = "cpu") -> float:
    """`torch_over_generate_ragged`: both in this process and with one thread, so that nothing but the batching differs."""
    keys = {"device": device, "max_batch": BATCH, "context_length": CONTEXT, "cache_gb": _CACHE_GB}
    (build,) = installed("engine", "torch", keys).variants.values()
    engine, padded, asked = (
        build(context("engine", folder)),
        PaddedGenerate(model, device),
        _ragged(),
    )
    batches = [asked[at : at + BATCH] for at in range(0, RAGGED, BATCH)]

    async def ours() -> None:
        results = await asyncio.gather(*(engine.generate(request) for request in asked))
        for request, result in zip(asked, results, strict=True):
            assert len(result.tokens) == request.sampling.max_tokens

    async def theirs() -> None:
        for batch in batches:
            await asyncio.to_thread(padded, batch)

    await engine.start(model)
    try:
        measured = await _interleaved(rounds, ours, theirs)
    finally:
        await engine.close()
    return round(ratio(measured[1], measured[0]), 3)


def _ragged() -> list[GenerateRequest]:
    """Lengths of prompts evenly and of completions log-evenly spread, in an order that mixes them."""
    random = np.random.default_rng(0)
    prompts = random.permutation(np.linspace(4, LONGEST_PROMPT, RAGGED).astype(int))
    completions = random.permutation(np.geomspace(8, LONGEST_COMPLETION, RAGGED).astype(int))
    return [
        GenerateRequest(str(n), _prompt(n, int(prompt)), Sampling(int(count), ignore_eos=True))
        for n, (prompt, count) in enumerate(zip(prompts, completions, strict=True))
    ]


def _prompt(number: int, length: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array([2 + (number + i) % 25 for i in range(length)], dtype=np.int32)


def _request(number: int, tokens: int) -> GenerateRequest:
    sampling = Sampling(tokens, ignore_eos=True)
    return GenerateRequest(f"{tokens}-{number}", _prompt(number, PROMPT), sampling)


async def _results(client: HostClient, tokens: int, count: int = BATCH) -> list[GenerateResult]:
    return list(await asyncio.gather(*(client.generate(_request(n, tokens)) for n in range(count))))


async def _posted(bare: ServerClient, tokens: int) -> None:
    async def one(number: int) -> None:
        request = _request(number, tokens)
        body = requests.body_of(f"bare-{number}", request, (), "bare", False)
        sampled = requests.SampledPieces(request)
        sampled.take(await bare.ask(requests.PATH, body))
        assert len(sampled.result().tokens) == tokens

    await asyncio.gather(*(one(number) for number in range(BATCH)))


async def _bare_swap(bare: ServerClient, file: Path, version: int) -> None:
    await bare.post("/pause?mode=keep&clear_cache=false")
    await bare.post("/start_weight_update")
    for names in chunks(file, 512 << 20):
        await bare.post("/update_weights", {"update_info": {"path": str(file), "names": names}})
    await bare.post("/finish_weight_update", {"weight_version": str(version)})
    await bare.post("/resume")


async def _interleaved(
    rounds: int, *sides: Callable[[], Awaitable[object]]
) -> list[list[float]]:  # fmt: skip
    """Seconds of each side from ``A B A B …``, after one unmeasured round."""
    measured: list[list[float]] = [[] for _ in sides]
    for round_ in range(rounds + 1):
        for side, values in zip(sides, measured, strict=True):
            began = time.perf_counter()
            await side()
            if round_:
                values.append(time.perf_counter() - began)
    return measured
