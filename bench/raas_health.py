"""How soon a RaaS answers `GET /v1/health` while it fetches and loads weights, one version after the other.

A real RaaS with its engine host, a table of 64 MiB as the model, the transport of the run, and a dataflow that
announces the next version as soon as one is served. Quiet is the same RaaS with nothing to load.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from astraflow_contrib_raas_check.scripted import ScriptedDataflow
from astraflow_contrib_raas_check.weights import Weights
from astraflow_runtime.config.loading import load_config
from astraflow_runtime.models.folders import resolve_models
from astraflow_runtime.models.resolver import ModelResolver
from astraflow_testing.runs import TABLE_RUN
from astraflow_testing.table import POSITIONS
from astraflow_tiny_model.folder import write_tiny_model
from bench.support.processes import ROOT, TOKEN

MIB = 64
DEADLINE_S = 120.0


def measure(quick: bool) -> dict[str, float]:
    """Milliseconds of calls from one connection, at the 50th and 99th of a hundred; versions loaded."""
    return asyncio.run(_measure(versions=4 if quick else 60, quiet_s=1.0 if quick else 10.0))


async def _measure(versions: int, quiet_s: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        loaded = load_config(_run_file(folder))
        config = resolve_models(loaded.config, ModelResolver(loaded.catalog))
        flow = ScriptedDataflow("127.0.0.1", 0, TOKEN)
        await flow.server.start()
        weights = await asyncio.to_thread(
            Weights, loaded.catalog, config, folder / "weights", TOKEN
        )
        process = await _start(folder, flow.server.url)
        try:
            await _serve(flow, weights, 0)
            url = json.loads((folder / "run" / "state" / "raas-0" / "raas.json").read_text())["url"]
            async with _calling(url) as quiet:
                await asyncio.sleep(quiet_s)
            async with _calling(url) as under_load:
                began = time.monotonic()
                for version in range(1, versions + 1):
                    await _serve(flow, weights, version)
                seconds = time.monotonic() - began
        finally:
            process.kill()
            await process.wait()
            await asyncio.to_thread(weights.close)
            await flow.server.stop()
    return {
        "p50_ms": 1e3 * statistics.median(under_load),
        "p99_ms": 1e3 * _p99(under_load),
        "most_ms": 1e3 * max(under_load),
        "quiet_p50_ms": 1e3 * statistics.median(quiet),
        "quiet_p99_ms": 1e3 * _p99(quiet),
        "calls": len(under_load),
        "versions": versions,
        "versions_per_s": versions / seconds,
        "model_mib": MIB,
    }


def _run_file(folder: Path) -> Path:
    model = write_tiny_model(folder / "model", hidden=8, layers=1, heads=1, kv_heads=1)
    columns = (MIB << 20) // (4 * POSITIONS)
    save_file({"logits": np.zeros((POSITIONS, columns), np.float32)}, model / "model.safetensors")
    file = folder / "run.toml"
    text = TABLE_RUN.partition("model = ")
    file.write_text(f'{text[0]}model = "{model}"\n{text[2].partition(chr(10))[2]}')
    return file


async def _start(folder: Path, url: str) -> asyncio.subprocess.Process:
    environment = {**os.environ, "ASTRAFLOW_TOKEN": TOKEN, "ASTRAFLOW_DATAFLOW": url}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "astraflow_runtime", "raas", str(folder / "run.toml"),
        "--directory", str(folder / "run"), "--name", "raas-0",
        env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=2,
    )  # fmt: skip


async def _serve(flow: ScriptedDataflow, weights: Weights, version: int) -> None:
    for entry in (await asyncio.to_thread(weights.publish, version)).values():
        await flow.announce(entry)
    await flow.until(
        lambda: flow.served == {"solver": version}, f"serving version {version}", DEADLINE_S
    )


@asynccontextmanager
async def _calling(url: str) -> AsyncIterator[list[float]]:
    """Calls of another process within the context; the seconds of each are in the list after it."""
    pipe = asyncio.subprocess.PIPE
    caller = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.support.health_calls", url, cwd=ROOT, stdin=pipe, stdout=pipe
    )
    seconds: list[float] = []
    try:
        assert caller.stdout is not None
        await asyncio.wait_for(caller.stdout.readline(), DEADLINE_S)
        yield seconds
        said, _ = await asyncio.wait_for(caller.communicate(b""), DEADLINE_S)
        seconds += json.loads(said)
    finally:
        if caller.returncode is None:
            caller.kill()
            await caller.wait()


def _p99(seconds: list[float]) -> float:
    return float(np.quantile(seconds, 0.99))
