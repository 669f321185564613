"""What a version costs the engine `vllm` when only an adapter travels: its bytes, and how soon a real server serves it.

The model of the benchmark `adapters` on a server on CPU (float32), with eight requests under way; adapters on all linear
layers. `bytes_whole`, `bytes_rank_R` and `share_rank_R` are as there. Medians of rounds in which the versions take turns:
`swap_…_s` from `pause("keep")` to `resume`, `…_cpu_s` the same in CPU seconds of the server's processes and this one, of
which most is decoding until the step ends, and `load_…_s` `load_weights` alone; `serve_…_s` from the same pause to the
answer of a request of one token that came after it, which carries the new version.

Each of the eight requests goes on with the new version: vLLM replaces the one adapter that they name.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from astraflow_core.catalog import Catalog
from astraflow_core.config.environments import environment_folder, interpreter_in
from astraflow_core.types import GenerateRequest, Sampling, WeightSource
from astraflow_plugin_vllm.config import VllmConfig
from astraflow_plugin_vllm.server import VllmServer
from astraflow_runtime.launch.environments import create
from astraflow_testing.conformance.subject import context
from astraflow_tiny_model.folder import write_tiny_model
from astraflow_wire.model_files.model_digest import digest_of_model
from bench.adapters import RANKS, REQUESTS, SIZES, adapter, request
from bench.support.trees import cpu_s

ENVIRONMENTS = ("vllm", "tests-vllm")
START_S, DEADLINE_S = 580, 900
KEYS: dict[str, Any] = {"max_batch": 2 * REQUESTS, "lora_rank": max(RANKS), "context_length": 4096}
"""Of the engine and of its server."""
Swap = tuple[float, float, float, float]
"""Seconds until the resume, of the load and until the first answer; and CPU seconds until the resume."""


def measure(quick: bool) -> dict[str, float]:
    """The fields of the module's docstring; the environment ``vllm`` is made if it is missing, and that of the tests too."""
    pythons = [interpreter_in(environment_folder(name)) for name in ENVIRONMENTS]
    python = next((each for each in pythons if each.exists()), None)
    if python is None:
        say = lambda text: print(text, file=sys.stderr)  # noqa: E731
        python = create("vllm", ["vllm"], Catalog.discover(), say=say).interpreter
    sizes = {**SIZES, "hidden": 64, "layers": 2} if quick else SIZES
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        model = write_tiny_model(place / "model", dtype="BF16", **sizes)  # type: ignore[arg-type]
        file = model / "model.safetensors"
        versions = {"whole": WeightSource("p", 1, file, digest_of_model([file]), 0, 0.0)}
        for rank in RANKS:
            versions[f"rank_{rank}"] = WeightSource(
                "p", 1, adapter(model, place / f"{rank}.safetensors", rank), f"d{rank}", 0, 0.0,
                "adapter", versions["whole"].digest,
            )  # fmt: skip
        swaps = asyncio.run(_served(str(python), place, model, versions, 3 if quick else 9))
        found: dict[str, float] = {}
        for name, source in versions.items():
            found |= _figures(name, source, swaps[name])
            if name != "whole":
                found[f"share_{name}"] = round(found[f"bytes_{name}"] / found["bytes_whole"], 4)
        return found


def _figures(name: str, source: WeightSource, swaps: list[Swap]) -> dict[str, float]:
    found: dict[str, float] = {f"bytes_{name}": source.path.stat().st_size}
    fields = (f"swap_{name}_s", f"load_{name}_s", f"serve_{name}_s", f"swap_{name}_cpu_s")
    for field, values in zip(fields, zip(*swaps, strict=True), strict=True):
        found[field] = round(statistics.median(values), 4)
    return found


async def _served(
    python: str, place: Path, model: Path, versions: dict[str, WeightSource], rounds: int
) -> dict[str, list[Swap]]:
    """Swaps of each version, in turn."""
    config = VllmConfig(**KEYS, start_deadline_s=START_S)
    server = VllmServer(config, model, place / "vllm.log", 0, python, cpu=True)
    await server.start()
    try:
        given = {"url": server.url, **KEYS}
        selected, options = Catalog.discover().validate_options("engine", "vllm", given, "vllm")
        engine: Any = selected.build(options, context("engine", place))
        async with asyncio.timeout(DEADLINE_S):
            await engine.start(model)
            try:
                return await _swaps(engine, versions, rounds)
            finally:
                await engine.close()
    finally:
        await server.stop()


async def _swaps(
    engine: Any, versions: dict[str, WeightSource], rounds: int
) -> dict[str, list[Swap]]:
    asked = [request(number) for number in range(REQUESTS)]
    under_way = [asyncio.create_task(engine.generate(each)) for each in asked]
    swaps: dict[str, list[Swap]] = {name: [] for name in versions}
    number = 0
    for turn in range(rounds + 1):
        for name, source in versions.items():
            number += 1
            swap = await _swap(engine, replace(source, version=number))
            if turn:  # the first of each warms up what the server compiles
                swaps[name].append(swap)
    await engine.abort([each.id for each in asked])
    await asyncio.gather(*under_way)
    return swaps


async def _swap(engine: Any, source: WeightSource) -> Swap:
    """After the requests under way have sampled some more."""
    before = (await engine.health())["tokens_generated"]
    while (await engine.health())["tokens_generated"] < before + REQUESTS:
        await asyncio.sleep(0.01)
    paused, cpu = time.perf_counter(), cpu_s(os.getpid())
    await engine.pause("keep")
    began = time.perf_counter()
    await engine.load_weights(source)
    loaded = time.perf_counter()
    await engine.resume()
    resumed, used = time.perf_counter(), cpu_s(os.getpid())
    probe = GenerateRequest(
        f"probe-{source.version}", np.arange(2, 10, dtype=np.int32), Sampling(1, ignore_eos=True)
    )
    answer = await engine.generate(probe)
    served = time.perf_counter()
    assert answer.versions.tolist() == [source.version]
    return resumed - paused, loaded - began, served - paused, used - cpu
