"""Two ways to bring a version into a paused server."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Protocol

from astraflow_serving.buckets import DeviceMemory, Rendezvous
from astraflow_serving.http import ServerClient
from astraflow_serving.model_folder import ModelFolder, chunks, link_version
from astraflow_serving.server_backend import Version


class VersionUpdate(Protocol):
    """Both leave the server without usable weights if they fail; a good version must be loaded before
    anything is computed again, else the server dies."""

    async def prepare(self) -> None:
        """Called once, when the server has started."""

    async def load(self, version: Version) -> None:
        """Replace the weights; the server's tokens carry the number of the version from now on."""


class TransferUpdate:
    """vLLM's protocol in four stages, with the backend of :mod:`astraflow_plugin_vllm.workers.transfer`, which
    reads ``chunk_bytes`` at a time."""

    def __init__(self, client: ServerClient, chunk_bytes: int) -> None:
        self._client = client
        self._chunk_bytes = chunk_bytes

    async def prepare(self) -> None:
        """Stage one."""
        await self._client.post("/init_weight_transfer_engine", {"init_info": {}})

    async def load(self, version: Version) -> None:
        """Stages two to four."""
        await self._client.post("/start_weight_update")
        for file in version.files:
            for names in chunks(file, self._chunk_bytes):
                update = {"path": str(file), "names": names}
                await self._client.post("/update_weights", {"update_info": update})
        await self._client.post("/finish_weight_update", {"weight_version": str(version.number)})


class Reload:
    """``reload_weights``: each worker reads a folder like the model's, as it did at the start."""

    def __init__(self, client: ServerClient, folder: ModelFolder) -> None:
        self._client = client
        self._folder = folder

    async def prepare(self) -> None:
        """Make sure that the server can bring a tied output layer up to date."""
        await self._repack()

    async def load(self, version: Version) -> None:
        """Lay out a folder of links, and have it read."""
        with tempfile.TemporaryDirectory(prefix="astraflow-vllm-") as scratch:
            link_version(self._folder, version.files, Path(scratch))
            await self._call("forget_failed_update", {})
            await self._call("reload_weights", {"weights_path": scratch})
        await self._repack()
        await self._client.post("/update_weight_version", {"new_version": str(version.number)})

    async def _repack(self) -> None:
        if self._folder.config.tied:
            await self._call("repack_output", {})

    async def _call(self, method: str, arguments: dict[str, str]) -> None:
        await self._client.post("/collective_rpc", {"method": method, "kwargs": arguments})


async def join(client: ServerClient, rendezvous: Rendezvous) -> None:
    """Have the workers take their places in a group whose rank 0 is the trainer; returns when all are there."""
    fields = {name: getattr(rendezvous, name) for name in Rendezvous.__slots__}
    await client.post("/init_weight_transfer_engine", {"init_info": fields})


async def receive(client: ServerClient, version: Version) -> None:
    """Stages two to four, with buckets for chunks; each is verified by the workers before it is used."""
    await client.post("/start_weight_update")
    for bucket in version.buckets:
        update: dict[str, Any] = {
            "tensors": [[t.name, t.dtype, list(t.shape), t.start, t.end] for t in bucket.tensors],
            "digest": bucket.digest,
        }
        if bucket.memory is not None:
            update["memory"] = {
                name: getattr(bucket.memory, name) for name in DeviceMemory.__slots__
            }
        await client.post("/update_weights", {"update_info": update})
    await client.post("/finish_weight_update", {"weight_version": str(version.number)})
