"""How the stand-in takes weights: by a file, by tensors, by a broadcast."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file
from sglang_scheduler import Refused


class Updates:
    """The handlers of a ``server``'s routes for weights; each takes a body and gives what the answer has beside
    success, or raises ``Refused``."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self.handlers = {
            "/begin_weight_update": self.begin,
            "/end_weight_update": self.finish,
            "/update_weights_from_disk": self.update,
            "/update_weights_from_tensor": self.update_from_tensors,
            "/init_weights_update_group": self.join,
            "/destroy_weights_update_group": self.leave,
            "/update_weights_from_distributed": self.update_from_broadcast,
        }

    async def begin(self, body: Any) -> dict[str, Any]:
        async with self.server.undisturbed():
            await self.server.scheduler.ask(self.server.scheduler.begin_session)
        return {}

    async def finish(self, body: Any) -> dict[str, Any]:
        async with self.server.undisturbed():
            await self.server.scheduler.ask(self.server.scheduler.end_session)
        return {}

    async def take_weights(self, body: Any, read: Callable[[], Any], check: bool = True) -> Any:
        def update() -> None:
            if check:
                self.server.scheduler.check_session()
            self.server.scheduler.load(read())
            self.server.scheduler.updated(body.get("weight_version"), body.get("flush_cache", True))

        if body.get("abort_all_requests"):
            self.server.abort("", everything=True)
        async with self.server.undisturbed():
            await self.server.scheduler.ask(update)
        self.server.version = body.get("weight_version") or self.server.version
        return {}

    async def update(self, body: Any) -> dict[str, Any]:
        def read() -> dict[str, Any]:
            files = sorted(Path(body["model_path"]).glob("*.safetensors"))
            if not files:
                raise Refused("no weights there")
            return {name: array for file in files for name, array in load_file(file).items()}

        return {"num_paused_requests": 0, **await self.take_weights(body, read, check=False)}

    async def update_from_tensors(self, body: Any) -> Any:
        def read() -> dict[str, Any]:
            (given,) = body["serialized_named_tensors"]  # one for each worker
            tensors = ForkingPickler.loads(base64.b64decode(given))
            return {name: tensor.float().numpy().copy() for name, tensor in tensors}

        return await self.take_weights(body, read)

    async def join(self, body: Any) -> dict[str, Any]:
        def join() -> Any:
            """As SGLang's ``init_custom_process_group``."""
            from torch.distributed import PrefixStore, TCPStore, distributed_c10d

            address, port = body["master_address"], body["master_port"]
            store = TCPStore(address, port, body["world_size"], is_master=False)
            group = distributed_c10d._new_process_group_helper(
                body["world_size"], body["rank_offset"], [], body["backend"],
                PrefixStore(body["group_name"], store), group_name=body["group_name"],
                timeout=timedelta(seconds=30),
            )[0]  # fmt: skip
            distributed_c10d._world.pg_group_ranks[group] = {
                n: n for n in range(body["world_size"])
            }
            return group

        self.server.groups[body["group_name"]] = await asyncio.to_thread(join)
        return {}

    async def leave(self, body: Any) -> dict[str, Any]:
        group = self.server.groups.pop(body["group_name"], None)
        if group is None:
            raise Refused("no such group")
        import torch

        torch.distributed.destroy_process_group(group)
        return {}

    async def update_from_broadcast(self, body: Any) -> Any:
        await self.server.scheduler.ask(self.server.scheduler.check_session)
        import torch

        given = zip(body["names"], body["dtypes"], body["shapes"], strict=True)
        tensors = [
            (name, torch.zeros(shape, dtype=getattr(torch, dtype))) for name, dtype, shape in given
        ]
        group = self.server.groups[body["group_name"]]
        for _, tensor in tensors:
            await asyncio.to_thread(group.broadcast(tensor, 0).wait)
        return await self.take_weights(
            body, lambda: {name: tensor.float().numpy().copy() for name, tensor in tensors}
        )
