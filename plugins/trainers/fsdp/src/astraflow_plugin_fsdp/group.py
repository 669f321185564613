"""The ranks of a trainer: their rendezvous, and what they exchange other than gradients."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from astraflow_core.errors import DeadlineExceeded, UserError

_meetings = itertools.count()
_users = 0


@dataclass(frozen=True, slots=True)
class RankGroup:
    """``size`` ranks that make the same calls in the same order.

    ``mesh`` is ``[replicas, shards]``, or ``[shards]`` with one replica, on ``device``; ``tensor`` is ``[T]``, the
    neighbouring ranks that compute the same tokens with a part of each layer, or ``None`` where every rank has its
    own tokens; ``context`` is the process group of those that compute the same rows and part of each layer, each its
    tokens, or ``None``. The methods exchange data over CPU, through a separate group.
    """

    rank: int
    size: int
    device: torch.device
    mesh: DeviceMesh
    tensor: DeviceMesh | None
    context: Any
    control: Any
    files: Any
    """Process group of asynchronous checkpoints: their collectives run concurrently with those of training, and two
    streams of collectives in one gloo group corrupt each other."""

    @property
    def alike(self) -> int:
        """How many neighbouring ranks have the same share of the rows."""
        return self.contexts * (1 if self.tensor is None else self.tensor.size())

    @property
    def contexts(self) -> int:
        """How many ranks share the tokens of a row."""
        return 1 if self.context is None else dist.get_world_size(self.context)

    @property
    def share(self) -> tuple[int, int]:
        """Which share of the rows is this rank's, and of how many."""
        return self.rank // self.alike, self.size // self.alike

    def exchange(self, facts: dict[str, Any]) -> list[dict[str, Any]]:
        """The ``facts`` of every rank, in the order of ranks; JSON."""
        said = torch.frombuffer(bytearray(json.dumps(facts).encode()), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([len(said)]), group=self.control)
        longest = max(int(length) for length in lengths)
        received = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
        padded = torch.nn.functional.pad(said, (0, longest - len(said)))
        dist.all_gather(received, padded, group=self.control)
        return [
            json.loads(text[: int(length)].numpy().tobytes())
            for text, length in zip(received, lengths, strict=True)
        ]

    def total(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The sum over the shares of rows, on every rank; in place."""
        if self.rank % self.alike:
            values[:] = 0
        dist.all_reduce(torch.from_numpy(values), group=self.control)
        return values

    def agree(self, problem: str | None) -> None:
        """Raise :class:`UserError` on every rank if one of them has a problem."""
        problems = [said["problem"] for said in self.exchange({"problem": problem})]
        for rank, found in enumerate(problems):
            if found is not None:
                raise UserError(found if rank == self.rank else f"rank {rank}: {found}")

    def leave(self) -> None:
        """End the process group, unless another trainer of this process is in it."""
        global _users
        _users -= 1
        if not _users and dist.is_initialized():
            dist.destroy_process_group()


def join(
    rank: int,
    size: int,
    local: int,
    device: str,
    replicas: int,
    deadline_s: float,
    tensor_parallel: int = 1,
    cpu_offload: bool = False,
    context_parallel: int = 1,
) -> RankGroup:
    """Connect to the other ranks at ``MASTER_ADDR``:``MASTER_PORT``, if there are any.

    Raises :class:`DeadlineExceeded` that names the missing ranks after ``deadline_s``, which is also the
    timeout of collectives.
    """
    global _users
    named = {
        "replicas": replicas,
        "context_parallel": context_parallel,
        "tensor_parallel": tensor_parallel,
    }
    if size % math.prod(named.values()):
        product = " x ".join(f"{name} = {n}" for name, n in named.items() if n > 1)
        raise UserError(
            f"{product} does not divide {size} ranks: each part of the model needs as many as the others"
        )
    chosen = _device(device, local)
    if not dist.is_initialized():
        store = HashStore() if size == 1 else _rendezvous(rank, size, deadline_s)
        dist.init_process_group(
            _backend(chosen, cpu_offload),
            store=store,
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=deadline_s),
            device_id=chosen if chosen.type == "cuda" else None,
        )
    _users += 1
    timeout = timedelta(seconds=deadline_s)
    whole, data = _meshes(chosen, size, replicas, tensor_parallel)
    return RankGroup(
        rank=rank,
        size=size,
        device=chosen,
        mesh=whole[data],
        tensor=whole["tensor"] if tensor_parallel > 1 else None,
        context=_contexts(size, context_parallel, tensor_parallel, timeout),
        control=dist.new_group(backend="gloo", timeout=timeout),
        files=dist.new_group(backend="gloo", timeout=timeout),
    )


def _meshes(
    device: torch.device, size: int, replicas: int, tensor_parallel: int
) -> tuple[DeviceMesh, tuple[str, ...]]:
    """All ranks as ``[replica, shard, tensor]``, dimensions of one left out but ``shard``, and the names of those
    that rows are shared over."""
    sizes = {
        "replica": replicas,
        "shard": size // replicas // tensor_parallel,
        "tensor": tensor_parallel,
    }
    kept = {name: n for name, n in sizes.items() if n > 1 or name == "shard"}
    whole = init_device_mesh(device.type, tuple(kept.values()), mesh_dim_names=tuple(kept))
    return whole, tuple(name for name in kept if name != "tensor")


def _contexts(size: int, context: int, tensor: int, timeout: timedelta) -> Any:
    """The group of this rank with those that have the same rows and the same part of each layer. They are among those
    that the weights are sharded over, which adds up their gradients: each has a part of what the rows say."""
    if context == 1:
        return None
    ranks = np.arange(size).reshape(-1, context, tensor).swapaxes(1, 2).reshape(-1, context)
    mine, _ = dist.new_subgroups_by_enumeration(ranks.tolist(), timeout)  # type: ignore[no-untyped-call]
    return mine


def _backend(device: torch.device, cpu_offload: bool) -> str:
    if device.type == "cpu":
        return "gloo"
    return "cpu:gloo,cuda:nccl" if cpu_offload else "nccl"


def _rendezvous(rank: int, size: int, deadline_s: float) -> Any:
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    ends = time.monotonic() + deadline_s
    hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        server = TCPStore(
            host,
            port,
            size,
            is_master=rank == 0 and not hosted,
            timeout=timedelta(seconds=deadline_s),
            wait_for_workers=False,
            multi_tenant=True,
        )
    except dist.DistError as error:
        raise DeadlineExceeded(
            f"rank 0 of {size} at {host}:{port}", f"{error}", deadline_s
        ) from error
    # The store of torchrun's agent outlives the ranks, and with it what those before a restart have said.
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = PrefixStore(f"astraflow-fsdp/{restart}/{next(_meetings)}", server)
    store.set(f"rank-{rank}", "here")
    others = [other for other in range(size) if other != rank]
    with contextlib.suppress(dist.DistStoreError):
        left = max(0.001, ends - time.monotonic())
        store.wait([f"rank-{other}" for other in others], timedelta(seconds=left))
    missing = [other for other in others if not store.check([f"rank-{other}"])]
    if missing:
        names = ", ".join(str(other) for other in missing)
        raise DeadlineExceeded(
            f"rank{'s' if len(missing) > 1 else ''} {names} of {size}",
            f"the ranks of trainer 'fsdp' meet at {host}:{port}; check the logs of the missing ranks",
            deadline_s,
        )
    return PrefixStore("group", store)


def _device(name: str, local: int) -> torch.device:
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if local >= count:
        raise UserError(
            f"trainer 'fsdp' is configured for 'cuda', but local rank {local} finds {count} CUDA devices: "
            "each rank needs its own"
        )
    device = torch.device("cuda", local)
    torch.cuda.set_device(device)
    return device
