"""Engine `vllm` beside the bare server, and beside engine `torch`, on SmolLM2 (a tiny model if quick).

`raas_over_bare`: tokens per second of 16 equal requests (32 + 64 tokens) through the engine host, over those
of the same requests posted to the same server with no code of ours but the reading of the answers.
`blocked_over_empty_swap`: seconds from the call of pause to the return of resume, through the engine host with
every check, over the same calls of vLLM's protocol made bare; 8 requests are in flight. Medians of
interleaved rounds. `logprob_gap`: between vLLM's log-probs of what it sampled and the scores that engine
`torch` gives the same tokens with the same weights.
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
from astraflow_core.hooks import Hooks
from astraflow_core.launch.environments import create
from astraflow_core.raas.host_client import HostClient
from astraflow_core.serving.http import Client
from astraflow_core.serving.model_folder import chunks
from astraflow_core.testing.tiny_model import write_tiny_model
from astraflow_core.types import GenerateRequest, GenerateResult, Sampling
from astraflow_plugin_vllm import requests
from astraflow_plugin_vllm.config import VllmConfig
from astraflow_plugin_vllm.server import VllmServer
from bench.support.hosted import hosted, swap
from bench.support.timing import ratio

BATCH, PROMPT, SAMPLED, IN_FLIGHT, ROUNDS = 16, 32, 64, 8, 5
MODEL = "pypi:SmolLM2-135M-Instruct"


def measure(quick: bool) -> dict[str, float]:
    """Start one server and measure; the environment ``vllm`` is made if it is missing."""
    catalog = Catalog.discover()
    say = lambda text: print(text, file=sys.stderr)  # noqa: E731
    python = create("vllm", ["vllm"], catalog, say=say).interpreter
    with tempfile.TemporaryDirectory(prefix="astraflow-bench-") as scratch:
        folder = Path(scratch)
        if quick:
            model = write_tiny_model(folder / "model", hidden=64, head_dim=32, context=1024)
        else:
            model = Hooks.for_models(catalog).resolve_model(MODEL, 0, cache_folder())
        return asyncio.run(_measured(folder, model, str(python)))


async def _measured(folder: Path, model: Path, python: str) -> dict[str, float]:
    keys = {"max_batch": BATCH, "context_length": 1024}
    server = VllmServer(VllmConfig(**keys), model, folder / "vllm.log", 0, python, cpu=True)
    began = time.perf_counter()
    await server.start()
    found = {"start_s": round(time.perf_counter() - began, 1)}
    bare = Client("vLLM server", server.url, 60)
    try:
        async with hosted(folder / "vllm", model, use="vllm", url=server.url, **keys) as client:
            found |= await _vllm(client, bare, model)
            results = await _results(client, SAMPLED)
        async with hosted(folder / "torch", model, use="torch", context_length=1024) as client:
            found |= await _torch(client, model, results)
        return found
    finally:
        await bare.close()
        await server.stop()


async def _vllm(client: HostClient, bare: Client, model: Path) -> dict[str, float]:
    file = model / "model.safetensors"
    versions = iter(range(1, 1000))
    through = await _interleaved(lambda: _results(client, SAMPLED), lambda: _posted(bare, SAMPLED))
    flying = asyncio.ensure_future(_results(client, 900, IN_FLIGHT))
    blocked = await _interleaved(
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
        "vllm_swap_s": round(float(np.median(blocked[0])), 3),
    }


async def _torch(
    client: HostClient, model: Path, results: list[GenerateResult]
) -> dict[str, float]:
    file = model / "model.safetensors"
    versions = iter(range(1, 1000))
    sampling, swapping = await _interleaved(
        lambda: _results(client, SAMPLED), lambda: swap(client, file, next(versions))
    )
    gaps = []
    for number, result in enumerate(results):
        whole = np.concatenate([_prompt(number), result.tokens])
        scores = await client.score(whole, 120)
        gaps.append(np.abs(scores[PROMPT:] - result.logprobs))
    gap = np.concatenate(gaps)
    return {
        "torch_tokens_s": round(BATCH * SAMPLED / float(np.median(sampling)), 1),
        "torch_swap_s": round(float(np.median(swapping)), 3),
        "logprob_gap_mean": float(gap.mean()),
        "logprob_gap_max": float(gap.max()),
    }


def _prompt(number: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array([2 + (number + i) % 25 for i in range(PROMPT)], dtype=np.int32)


def _request(number: int, tokens: int) -> GenerateRequest:
    sampling = Sampling(tokens, ignore_eos=True)
    return GenerateRequest(f"{tokens}-{number}", _prompt(number), sampling)


async def _results(client: HostClient, tokens: int, count: int = BATCH) -> list[GenerateResult]:
    return list(await asyncio.gather(*(client.generate(_request(n, tokens)) for n in range(count))))


async def _posted(bare: Client, tokens: int) -> None:
    async def one(number: int) -> None:
        request = _request(number, tokens)
        body = requests.body_of(f"bare-{number}", request, (), "bare", False)
        sampled = requests.Sampled(request)
        sampled.take(await bare.ask(requests.PATH, body))
        assert len(sampled.result().tokens) == tokens

    await asyncio.gather(*(one(number) for number in range(BATCH)))


async def _bare_swap(bare: Client, file: Path, version: int) -> None:
    await bare.post("/pause?mode=keep&clear_cache=false")
    await bare.post("/start_weight_update")
    for names in chunks(file, 512 << 20):
        await bare.post("/update_weights", {"update_info": {"path": str(file), "names": names}})
    await bare.post("/finish_weight_update", {"weight_version": str(version)})
    await bare.post("/resume")


async def _interleaved(*sides: Callable[[], Awaitable[object]]) -> list[list[float]]:
    """Seconds of each side from ``A B A B …``, after one unmeasured round."""
    measured: list[list[float]] = [[] for _ in sides]
    for round_ in range(ROUNDS + 1):
        for side, values in zip(sides, measured, strict=True):
            began = time.perf_counter()
            await side()
            if round_:
                values.append(time.perf_counter() - began)
    return measured
