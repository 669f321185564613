"""The cost of a version if only an adapter is sent: its bytes, and the pause of the engine `torch`.

A model of 6 layers (hidden 512) on CPU; adapters on all linear layers. `bytes_whole`: the file of a whole version in bfloat16;
`bytes_rank_R`: that of an adapter of rank R, also in 16 bits; `share_rank_R`: of the whole one. `swap_whole_s` and
`swap_rank_R_s`: from `pause("keep")` to `resume`, with eight requests under way, median; an adapter is merged into the base
that the engine keeps. `swap_…_cpu_s`: the same in CPU seconds of the process, which other work on the machine disturbs less;
most of it is the end of the decoding step that runs, so `load_…_cpu_s` are those of `load_weights` alone.

With `live_adapters` adapters are not merged, and each of the eight requests keeps the version with which it began:
`live_rank_8_s`, `live_rank_8_cpu_s` and `live_load_cpu_s` are the same of a swap then, and `blocked_ratio` is the last over
`load_whole_cpu_s`. `live_versions`: how many there were at once, the fewest after any swap that was measured. `step_ratio`:
CPU seconds of a decoding step with so many, over one with a merged adapter; the first lays the factors side by side.

A matrix of m times n has m · n numbers, and its factors rank · (m + n), so that the share is rank · (1/m + 1/n): it falls as
models grow wider. `bytes_wide`, `bytes_wide_rank_8` and `share_wide_rank_8` are those of 4 layers with twice the widths.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from astraflow_core.catalog import Catalog
from astraflow_core.types import GenerateRequest, Sampling, WeightSource
from astraflow_serving.model_folder import ModelFolder
from astraflow_testing.conformance.subject import context
from astraflow_tiny_model.folder import write_tiny_model
from astraflow_wire.model_files.model_digest import digest_of_model

SIZES = {
    "hidden": 512,
    "layers": 6,
    "heads": 8,
    "kv_heads": 4,
    "head_dim": 64,
    "ffn": 1536,
    "context": 4096,
}
WIDE = {**SIZES, "hidden": 1024, "layers": 4, "heads": 16, "kv_heads": 8, "ffn": 3072}
RANKS = (8, 32)
REQUESTS = 8
LIVE = 4
STEPS = 40
"""Whose CPU seconds are compared."""
Clocks = tuple[float, float, float]
"""Seconds of a swap on the wall, in CPU time of this process, and those of them in which the version was loaded."""


def measure(quick: bool) -> dict[str, float]:
    """The fields of the module's docstring."""
    sizes = {**SIZES, "hidden": 64, "layers": 2} if quick else SIZES
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        model = write_tiny_model(place / "model", dtype="BF16", **sizes)  # type: ignore[arg-type]
        base = digest_of_model([model / "model.safetensors"])
        whole = WeightSource("p", 1, model / "model.safetensors", base, 0, 0.0)
        versions = {"whole": whole}
        for rank in RANKS:
            file = adapter(model, place / f"{rank}.safetensors", rank)
            versions[f"rank_{rank}"] = WeightSource(
                "p", 1, file, f"d{rank}", 0, 0.0, "adapter", base
            )
        rounds = 3 if quick else 9
        seconds, merged_step = asyncio.run(swapped(model, place, versions, rounds))
        swaps, live_versions, step = asyncio.run(live(model, place, versions["rank_8"], rounds))
        wall, cpu, load = medians(swaps)
        found = figures(versions, seconds) | wide(place, quick)
        return found | {
            "live_rank_8_s": round(wall, 4),
            "live_rank_8_cpu_s": round(cpu, 4),
            "live_load_cpu_s": round(load, 4),
            "blocked_ratio": round(load / found["load_whole_cpu_s"], 3),
            "live_versions": live_versions,
            "step_ratio": round(step / merged_step, 2),
        }


def figures(
    versions: dict[str, WeightSource], seconds: dict[str, list[Clocks]]
) -> dict[str, float]:
    """Of each version."""
    found: dict[str, float] = {}
    whole = versions["whole"].path.stat().st_size
    for name, source in versions.items():
        size = source.path.stat().st_size
        found[f"bytes_{name}"] = size
        if name != "whole":
            found[f"share_{name}"] = round(size / whole, 4)
        for field, value in zip(
            ("swap_{}_s", "swap_{}_cpu_s", "load_{}_cpu_s"), medians(seconds[name]), strict=True
        ):
            found[field.format(name)] = round(value, 4)
    return found


def wide(place: Path, quick: bool) -> dict[str, float]:
    """Bytes of a whole version and of an adapter of rank 8, of a wider model."""
    sizes = {**WIDE, "hidden": 128, "layers": 2} if quick else WIDE
    model = write_tiny_model(place / "wide", dtype="BF16", **sizes)  # type: ignore[arg-type]
    whole = (model / "model.safetensors").stat().st_size
    part = adapter(model, place / "wide-8.safetensors", 8).stat().st_size
    share = round(part / whole, 4)
    return {"bytes_wide": whole, "bytes_wide_rank_8": part, "share_wide_rank_8": share}


def adapter(model: Path, file: Path, rank: int) -> Path:
    """A random one on all linear layers of the transformer."""
    generator = np.random.default_rng(rank)
    factors: dict[str, npt.NDArray[np.float16]] = {}
    for name, weight in shapes(model).items():
        module = f"base_model.model.{name.removesuffix('.weight')}"
        rows, columns = weight
        a, b = generator.standard_normal((rank, columns)), generator.standard_normal((rows, rank))
        factors[f"{module}.lora_A.weight"] = a.astype(np.float16)
        factors[f"{module}.lora_B.weight"] = (b / 100).astype(np.float16)
    save_file(factors, file)
    return file


def shapes(model: Path) -> dict[str, tuple[int, int]]:
    """Of the linear layers: name of the weight → rows and columns."""
    found = {}
    for name, spec in ModelFolder.read(model).tensors.items():
        if name.endswith("_proj.weight"):
            rows, columns = spec.shape
            found[name] = (rows, columns)
    return found


def medians(seconds: Sequence[Clocks]) -> Clocks:
    """Of each clock."""
    wall, cpu, load = (statistics.median(each) for each in zip(*seconds, strict=True))
    return wall, cpu, load


async def started(model: Path, place: Path, keys: dict[str, Any]) -> Any:
    """The engine."""
    given = {"device": "cpu", "cache_gb": 0.25, **keys}
    selected, options = Catalog.discover().validate_options("engine", "torch", given, "torch")
    engine: Any = selected.build(options, context("engine", place))
    await engine.start(model)
    return engine


def request(number: int) -> GenerateRequest:
    """One that outlasts the benchmark; so many fit into the cache at once."""
    prompt = np.arange(2, 10, dtype=np.int32)
    return GenerateRequest(str(number), prompt, Sampling(2000, ignore_eos=True))


async def swap(engine: Any, source: WeightSource) -> Clocks:
    """Seconds for which the engine is paused, after it has decoded some more."""
    before = (await engine.health())["tokens_generated"]
    while (await engine.health())["tokens_generated"] <= before:
        await asyncio.sleep(0.01)
    began, cpu = time.perf_counter(), time.process_time()
    await engine.pause("keep")
    paused = time.process_time()
    await engine.load_weights(source)
    load = time.process_time() - paused
    await engine.resume()
    return time.perf_counter() - began, time.process_time() - cpu, load


async def cpu_of_a_step(engine: Any) -> float:
    """CPU seconds of the process for each of the next :data:`STEPS`."""
    before, began = (await engine.health())["steps"], time.process_time()
    while (steps := (await engine.health())["steps"] - before) < STEPS:
        await asyncio.sleep(0.01)
    return (time.process_time() - began) / float(steps)


async def swapped(
    model: Path, place: Path, versions: dict[str, WeightSource], rounds: int
) -> tuple[dict[str, list[Clocks]], float]:
    """Seconds of each swap, in turn, each from another kind of version; and CPU seconds of a step."""
    engine = await started(model, place, {})
    asked = [request(number) for number in range(REQUESTS)]
    under_way = [asyncio.create_task(engine.generate(each)) for each in asked]
    seconds: dict[str, list[Clocks]] = {name: [] for name in versions}
    async with asyncio.timeout(300):
        for _ in range(rounds):
            for name, source in versions.items():
                seconds[name].append(await swap(engine, source))
        step = await cpu_of_a_step(engine)
        await engine.abort([each.id for each in asked])
        await asyncio.gather(*under_way)
        await engine.close()
    return seconds, step


async def live(
    model: Path, place: Path, source: WeightSource, rounds: int
) -> tuple[list[Clocks], float, float]:
    """Seconds of each swap, while each request keeps its version and the oldest one ends after each; the fewest versions at
    once; and CPU seconds of a step."""
    engine = await started(model, place, {"live_adapters": LIVE})
    under_way: deque[tuple[str, asyncio.Task[Any]]] = deque()
    swaps: list[Clocks] = []
    fewest = float(LIVE)
    async with asyncio.timeout(300):
        for number in range(REQUESTS + rounds):
            under_way.append((str(number), asyncio.create_task(engine.generate(request(number)))))
            while (await engine.health())["running"] < len(under_way):
                await asyncio.sleep(0.01)
            if number < REQUESTS - LIVE:
                continue
            seconds = await swap(engine, replace(source, version=number))
            if number >= REQUESTS:
                swaps.append(seconds)
                fewest = min(fewest, (await engine.health())["live_versions"])
            if len(under_way) == REQUESTS:
                name, task = under_way.popleft()
                await engine.abort([name])
                await task
        step = await cpu_of_a_step(engine)
        await engine.abort([name for name, _ in under_way])
        await asyncio.gather(*(task for _, task in under_way))
        await engine.close()
    return swaps, fewest, step
