"""Ways to bring a version into a paused server."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Protocol

import msgspec

from astraflow_core.serving.http import Client, ServerRefused
from astraflow_core.serving.model_folder import ModelFolder, link_version
from astraflow_core.serving.server_backend import Version
from astraflow_plugin_sglang.config import SGLangConfig


class Update(Protocol):
    """Raises :class:`ServerRefused` if the server does not take a version; what it holds then is unknown."""

    async def prepare(self) -> None:
        """Called once, before the first version."""

    async def load(self, version: Version, flush: bool) -> None:
        """Replace the weights; tokens carry the number of the version from now on. ``flush``: drop all cached
        keys and values."""

    async def close(self) -> None:
        """Let go of what :meth:`prepare` took."""


class FromDisk:
    """``/update_weights_from_disk`` with a folder of links like the model's."""

    def __init__(self, client: Client, folder: ModelFolder) -> None:
        self._client = client
        self._folder = folder

    async def prepare(self) -> None:
        """Nothing has to be agreed on."""

    async def load(self, version: Version, flush: bool) -> None:
        """Lay the folder out, and have it read."""
        with tempfile.TemporaryDirectory(prefix="astraflow-sglang-") as scratch:
            folder = Path(scratch)
            link_version(self._folder, version.files, folder)
            body = {
                "model_path": str(folder),
                "weight_version": str(version.number),
                "abort_all_requests": False,
                "flush_cache": flush,
                "keep_pause": True,
            }
            await post_update(self._client, "/update_weights_from_disk", body)

    async def close(self) -> None:
        """Nothing was taken."""


async def post_update(client: Client, path: str, body: dict[str, Any]) -> None:
    """A call that says in its answer whether it was done."""
    answer = await client.post(path, body)
    if not msgspec.json.decode(answer).get("success"):
        raise ServerRefused(200, f"{path}: {answer[:500]!r}")


def update_of(client: Client, config: SGLangConfig, folder: ModelFolder) -> Update:
    """As the key ``update`` says."""
    if config.update == "disk":
        return FromDisk(client, folder)
    # Only these need torch in our own process.
    from astraflow_plugin_sglang import sharing

    kind = sharing.FromTensors if config.update == "tensor" else sharing.FromBroadcast
    return kind(client, config.tensor_parallel, config.chunk_mb << 20)
