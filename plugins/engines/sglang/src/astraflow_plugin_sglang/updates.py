"""Ways to bring a version into a paused server."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec

from astraflow_core.errors import AstraFlowError
from astraflow_serving.http import ServerClient, ServerRefused
from astraflow_serving.model_folder import ModelFolder, link_version
from astraflow_serving.server_backend import Version
from astraflow_wire.decoding import from_json

_END = "/end_weight_update"


class _Outcome(msgspec.Struct):
    success: bool = False


class ServerUpdate(Protocol):
    """Raises :class:`ServerRefused` if the server does not take a version; what it holds then is unknown."""

    async def prepare(self) -> None:
        """Called once, before the first version."""

    async def load(self, version: Version) -> None:
        """Replace the weights; tokens carry the number of the version from now on. What was cached stays: SGLang
        would refuse an update whose flush fails after the weights and the version have changed."""

    async def close(self) -> None:
        """Let go of what :meth:`prepare` took."""


class FromDisk:
    """``/update_weights_from_disk`` with a folder of links like the model's."""

    def __init__(self, client: ServerClient, folder: ModelFolder) -> None:
        self._client = client
        self._folder = folder

    async def prepare(self) -> None:
        """Nothing has to be agreed on."""

    async def load(self, version: Version) -> None:
        """Lay the folder out, and have it read."""
        with tempfile.TemporaryDirectory(prefix="astraflow-sglang-") as scratch:
            folder = Path(scratch)
            link_version(self._folder, version.files, folder)
            body = {
                "model_path": str(folder),
                "weight_version": str(version.number),
                "abort_all_requests": False,
                "flush_cache": False,
            }
            await post_update(self._client, "/update_weights_from_disk", body)

    async def close(self) -> None:
        """Nothing was taken."""


@asynccontextmanager
async def update_session(client: ServerClient) -> AsyncIterator[None]:
    """Between ``/begin_weight_update`` and ``/end_weight_update``, outside of which SGLang takes no tensors. The end
    is posted after a failure too, for otherwise the next begin is refused."""
    await post_update(client, "/begin_weight_update", {"selector": "all"})
    try:
        yield
    except BaseException:
        await end_session(client)
        raise
    await post_update(client, _END, {})


async def end_session(client: ServerClient) -> None:
    """End a session that an update or an engine left open; without one SGLang refuses, which is as good."""
    with suppress(AstraFlowError):
        await post_update(client, _END, {})


async def post_update(client: ServerClient, path: str, body: dict[str, Any]) -> None:
    """A call that says in its answer whether it was done."""
    answer = await client.post(path, body)
    if not from_json(answer, _Outcome, f"{client.url}{path}").success:
        raise ServerRefused(200, f"{path}: {answer[:500]!r}")
