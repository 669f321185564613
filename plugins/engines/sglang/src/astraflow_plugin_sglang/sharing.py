"""Updates by tensors of the engine host, for a server that cannot read the file of a version; needs torch.

``/update_weights_from_tensor`` takes handles of tensors in shared memory of the GPU, as torch's own
multiprocessing writes them. ``/update_weights_from_distributed`` takes part in a broadcast, of which the engine
host is rank 0.
"""

from __future__ import annotations

import asyncio
import base64
import io
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing  # registers how tensors are shared
from safetensors import safe_open

from astraflow_core.errors import AstraFlowError, UserError
from astraflow_plugin_sglang.updates import post_update, update_session
from astraflow_serving.child_server import free_port
from astraflow_serving.http import ServerClient
from astraflow_serving.model_folder import chunks
from astraflow_serving.server_backend import Version

Named = list[tuple[str, torch.Tensor]]
_TENSOR, _DISTRIBUTED = "/update_weights_from_tensor", "/update_weights_from_distributed"
_JOIN_S, _LEAVE_S = 60.0, 2.0


def gpu() -> torch.device:
    """The device of tensors that another process can map. Raises :class:`UserError` without CUDA."""
    if not torch.cuda.is_available():
        raise UserError(
            "engine 'sglang': update = 'tensor' shares memory of a GPU and finds none; use 'disk', or "
            "'distributed' where the server does not see our files"
        )
    return torch.device("cuda", torch.cuda.current_device())


def pieces(version: Version, most_bytes: int, device: torch.device) -> Iterator[Named]:
    """The tensors of a version, at most that many bytes at a time."""
    for file in version.files:
        with safe_open(file, framework="pt") as opened:
            for names in chunks(file, most_bytes):
                yield [(name, opened.get_tensor(name).to(device)) for name in names]


def handles(tensors: Named) -> str:
    """What SGLang's ``MultiprocessingSerializer`` reads: base64 of torch's own description of shared tensors.
    The tensors have to live until they were read."""
    buffer = io.BytesIO()
    ForkingPickler(buffer).dump(tensors)
    return base64.b64encode(buffer.getvalue()).decode()


def last_marked(all_of_them: Iterator[Named]) -> Iterator[tuple[Named, bool]]:
    """Each piece, and whether it is the last."""
    before = next(all_of_them)
    for piece in all_of_them:
        yield before, False
        before = piece
    yield before, True


class FromTensors:
    """Handles of one chunk at a time, for each of ``workers`` its own: torch counts who maps a tensor by them."""

    def __init__(self, client: ServerClient, workers: int, chunk_bytes: int) -> None:
        self._client = client
        self._workers = workers
        self._chunk_bytes = chunk_bytes
        self._device = gpu()

    async def prepare(self) -> None:
        """Nothing has to be agreed on."""

    async def load(self, version: Version) -> None:
        """The version's number comes with the last chunk."""
        async with update_session(self._client):
            for tensors, last in last_marked(pieces(version, self._chunk_bytes, self._device)):
                body: dict[str, Any] = {
                    "serialized_named_tensors": [handles(tensors) for _ in range(self._workers)],
                    "abort_all_requests": False,
                    "flush_cache": False,
                }
                if last:
                    body["weight_version"] = str(version.number)
                await post_update(self._client, _TENSOR, body)

    async def close(self) -> None:
        """Nothing was taken."""


class FromBroadcast:
    """A process group of the engine host (rank 0) and ``workers``. Gloo: NCCL would want a GPU of our own."""

    def __init__(self, client: ServerClient, workers: int, chunk_bytes: int) -> None:
        self._client = client
        self._workers = workers
        self._chunk_bytes = chunk_bytes
        self._name = ""
        self._group: dist.ProcessGroupGloo | None = None

    async def prepare(self) -> None:
        """Both sides join at once."""
        self._name = f"astraflow-{uuid.uuid4().hex[:12]}"
        port = free_port(None)
        body = {
            "master_address": "127.0.0.1",
            "master_port": port,
            "rank_offset": 1,
            "world_size": self._workers + 1,
            "group_name": self._name,
            "backend": "gloo",
        }
        joined = asyncio.to_thread(join, port, 0, self._workers + 1, self._name)
        self._group, _ = await asyncio.gather(
            joined, post_update(self._client, "/init_weights_update_group", body)
        )

    async def load(self, version: Version) -> None:
        """A server that refused a chunk has left the broadcast, so the next version gets a new group."""
        if self._group is None:
            await self.prepare()
        try:
            async with update_session(self._client):
                for tensors, last in last_marked(
                    pieces(version, self._chunk_bytes, torch.device("cpu"))
                ):  # fmt: skip
                    await self._broadcast(tensors, version.number if last else None)
        except BaseException:
            await self.close()
            raise

    async def _broadcast(self, tensors: Named, number: int | None) -> None:
        """Announce a chunk, then broadcast its tensors one by one, in this order."""
        body: dict[str, Any] = {
            "names": [name for name, _ in tensors],
            "dtypes": [str(tensor.dtype).removeprefix("torch.") for _, tensor in tensors],
            "shapes": [list(tensor.shape) for _, tensor in tensors],
            "group_name": self._name,
            "abort_all_requests": False,
            "flush_cache": False,
        }
        if number is not None:
            body["weight_version"] = str(number)
        announced = asyncio.ensure_future(post_update(self._client, _DISTRIBUTED, body))
        sent = asyncio.ensure_future(asyncio.to_thread(self._send, tensors))
        # A server that refuses takes part in no broadcast, and its answer must not wait for one.
        await asyncio.wait([announced, sent], return_when=asyncio.FIRST_EXCEPTION)
        try:
            await announced
        except AstraFlowError:
            sent.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise
        await sent

    def _send(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
        group: Any = self._group
        try:
            for _, tensor in tensors:
                group.broadcast(tensor, 0).wait()
        except RuntimeError as error:  # what torch raises for a connection too
            raise AstraFlowError(f"the broadcast of {self._name} failed: {error}") from error

    async def close(self) -> None:
        """Leave the group, and have the server leave it."""
        if self._group is None:
            return
        self._group = None
        with suppress(AstraFlowError):
            body = {"group_name": self._name}
            await self._client.post("/destroy_weights_update_group", body, _LEAVE_S)


def join(port: int, rank: int, world_size: int, name: str) -> dist.ProcessGroupGloo:
    """A group separate from the default one. The prefixes of the store are those under which torch's helper, which
    SGLang calls on its side, has members find each other."""
    timeout = timedelta(seconds=_JOIN_S)
    store: Any = dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", port, world_size, is_master=rank == 0, timeout=timeout, wait_for_workers=False
    )
    for prefix in (name, f"{name}/", "cpu/"):
        store = dist.PrefixStore(prefix, store)  # type: ignore[attr-defined]
    return dist.ProcessGroupGloo(store, rank, world_size, timeout)
