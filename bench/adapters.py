"""What a version costs when only an adapter travels: its bytes, and the time for which the engine `torch` is paused.

A model of 6 layers (hidden 512) on CPU; adapters on all linear layers. `bytes_whole`: the file of a whole version in bfloat16;
`bytes_rank_R`: that of an adapter of rank R, also in 16 bits; `share_rank_R`: of the whole one. `swap_whole_s` and
`swap_rank_R_s`: from `pause("keep")` to `resume`, with eight requests under way, median; an adapter is merged into the base
that the engine keeps. `swap_…_cpu_s`: the same in CPU seconds of the process, which other work on the machine disturbs less.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
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
RANKS = (8, 32)
REQUESTS = 8
Clocks = tuple[float, float]
"""Of the wall and of this process, in seconds."""


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
        seconds = asyncio.run(swapped(model, place, versions, 3 if quick else 9))
        return figures(versions, seconds)


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
        wall, cpu = (statistics.median(each) for each in zip(*seconds[name], strict=True))
        found[f"swap_{name}_s"], found[f"swap_{name}_cpu_s"] = round(wall, 4), round(cpu, 4)
    return found


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


def clocks() -> Clocks:
    """Now."""
    return time.perf_counter(), time.process_time()


async def swapped(
    model: Path, place: Path, versions: dict[str, WeightSource], rounds: int
) -> dict[str, list[Clocks]]:
    """Seconds of each swap, in turn, each from another kind of version."""
    selected, keys = Catalog.discover().validate_options(
        "engine", "torch", {"device": "cpu", "cache_gb": 0.25}, "torch"
    )
    engine: Any = selected.build(keys, context("engine", place))
    await engine.start(model)
    prompt = np.arange(2, 10, dtype=np.int32)
    asked = [
        GenerateRequest(str(n), prompt, Sampling(4000, ignore_eos=True)) for n in range(REQUESTS)
    ]
    under_way = [asyncio.create_task(engine.generate(request)) for request in asked]
    seconds: dict[str, list[Clocks]] = {name: [] for name in versions}
    async with asyncio.timeout(300):
        for _ in range(rounds):
            for name, source in versions.items():
                before = (await engine.health())["tokens_generated"]
                while (await engine.health())["tokens_generated"] <= before:
                    await asyncio.sleep(0.01)
                began = clocks()
                await engine.pause("keep")
                await engine.load_weights(source)
                await engine.resume()
                ended = clocks()
                seconds[name].append((ended[0] - began[0], ended[1] - began[1]))
        await engine.abort([request.id for request in asked])
        await asyncio.gather(*under_way)
        await engine.close()
    return seconds
