"""An engine in its host, as a RaaS has it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from astraflow_core.types import WeightSource
from astraflow_runtime.config.loading import load_config
from astraflow_runtime.raas.engines.host_client import HostClient
from astraflow_runtime.raas.engines.host_process import EngineHostProcess, HostSettings
from astraflow_wire.host.sockets import socket_folder

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
POLICY = "solver"


@asynccontextmanager
async def hosted(
    directory: Path, model: Path, **engine: str | int | float
) -> AsyncIterator[HostClient]:
    """The client of an engine host whose engine, with these keys, serves version 0 of ``model``."""
    table = ", ".join(f"{key} = {value!r}" for key, value in engine.items())
    overrides = [f"policies.{POLICY}.model={model}", f"policies.{POLICY}.engine={{ {table} }}"]
    config = load_config(EXAMPLES / "quickstart.toml", overrides).config
    sockets = socket_folder()
    settings = HostSettings(config, directory, "raas-0", POLICY, "token", sockets.path)
    host = await EngineHostProcess.start(settings, 1)
    life = asyncio.ensure_future(host.wait_end())
    try:
        await swap(host.client, model / "model.safetensors", 0)
        yield host.client
    finally:
        await host.close()
        await life
        sockets.close()


async def swap(client: HostClient, file: Path, version: int) -> None:
    """Bring a version in while requests are in flight."""
    await client.pause("keep", 60)
    await client.load_weights(WeightSource(POLICY, version, file, "", 0, 0.0), 60)
    await client.resume(60)
