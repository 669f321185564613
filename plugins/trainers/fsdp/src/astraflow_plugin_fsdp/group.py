"""The ranks of a trainer: how they meet, and what they tell one another beside gradients."""

from __future__ import annotations

import contextlib
import itertools
import json
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
class Group:
    """``size`` ranks that make the same calls in the same order.

    ``mesh`` is ``[replicas, size / replicas]``, or ``[size]`` with one replica, on ``device``. What is said
    by the methods goes over CPU, through a group of its own.
    """

    rank: int
    size: int
    device: torch.device
    mesh: DeviceMesh
    control: Any
    files: Any
    """Process group of asynchronous checkpoints: their collectives run beside those of training, and two
    streams of collectives in one gloo group corrupt each other."""

    def tell(self, facts: dict[str, Any]) -> list[dict[str, Any]]:
        """What every rank tells the others, in the order of ranks; JSON."""
        said = torch.frombuffer(bytearray(json.dumps(facts).encode()), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([len(said)]), group=self.control)
        longest = max(int(length) for length in lengths)
        heard = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
        padded = torch.nn.functional.pad(said, (0, longest - len(said)))
        dist.all_gather(heard, padded, group=self.control)
        return [
            json.loads(text[: int(length)].numpy().tobytes())
            for text, length in zip(heard, lengths, strict=True)
        ]

    def total(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The sum over ranks, on every rank; in place."""
        dist.all_reduce(torch.from_numpy(values), group=self.control)
        return values

    def agree(self, problem: str | None) -> None:
        """Raise :class:`UserError` on every rank if one of them has a problem."""
        problems = [said["problem"] for said in self.tell({"problem": problem})]
        for rank, found in enumerate(problems):
            if found is not None:
                raise UserError(found if rank == self.rank else f"rank {rank}: {found}")

    def leave(self) -> None:
        """End the process group, unless another trainer of this process is in it."""
        global _users
        _users -= 1
        if not _users and dist.is_initialized():
            dist.destroy_process_group()


def join(rank: int, size: int, local: int, device: str, replicas: int, deadline_s: float) -> Group:
    """Meet the other ranks at ``MASTER_ADDR``:``MASTER_PORT``, or nobody if there is one rank.

    Raises :class:`DeadlineExceeded` that names who is missing after ``deadline_s``, which is also the time
    that a collective may take.
    """
    global _users
    if size % replicas:
        raise UserError(
            f"replicas = {replicas} does not divide {size} ranks: each replica needs as many as the others"
        )
    chosen = _device(device, local)
    if not dist.is_initialized():
        store = HashStore() if size == 1 else _meet(rank, size, deadline_s)
        dist.init_process_group(
            "nccl" if chosen.type == "cuda" else "gloo",
            store=store,
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=deadline_s),
            device_id=chosen if chosen.type == "cuda" else None,
        )
    _users += 1
    shape, names = ((replicas, size // replicas), ("replica", "shard"))
    if replicas == 1:
        shape, names = (size,), ("shard",)  # type: ignore[assignment]
    timeout = timedelta(seconds=deadline_s)
    return Group(
        rank=rank,
        size=size,
        device=chosen,
        mesh=init_device_mesh(chosen.type, shape, mesh_dim_names=names),
        control=dist.new_group(backend="gloo", timeout=timeout),
        files=dist.new_group(backend="gloo", timeout=timeout),
    )


def _meet(rank: int, size: int, deadline_s: float) -> Any:
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
            f"the ranks of trainer 'fsdp' meet at {host}:{port}; look into the logs of those that are missing",
            deadline_s,
        )
    return PrefixStore("group", store)


def _device(name: str, local: int) -> torch.device:
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if local >= count:
        raise UserError(
            f"trainer 'fsdp' is to run on 'cuda', but local rank {local} finds {count} CUDA devices: "
            "each rank needs one of its own"
        )
    device = torch.device("cuda", local)
    torch.cuda.set_device(device)
    return device
