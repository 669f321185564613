"""Weights from another process's memory by `cuda_ipc`, compared with a bare copy on the device.

`ipc_gb_s`: 10⁹ bytes per second of a version that a receiver maps, checks by its digests and copies into tensors of its own.
`ipc_over_copy`: seconds of that copy alone, of tensors of this process, over those of all of it: 1 would be a transfer that checks
nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import torch

from astraflow_core.types import Announcement, ComponentContext, RunInfo
from astraflow_plugin_cuda_ipc.config import CudaIpcConfig
from astraflow_plugin_cuda_ipc.transport import CudaIpcTransport
from astraflow_torch_weights.buckets import opened, tensors_of

MEGABYTES, SMALL_MEGABYTES = 1024, 16
MEETING_S, END_S = 120.0, 30.0


def measure(place: Path, device: str, rounds: int, small: bool) -> dict[str, float]:
    """The fields of the module's docstring."""
    megabytes = SMALL_MEGABYTES if small else MEGABYTES
    publisher = subprocess.Popen(
        [sys.executable, "-m", "bench.on_gpu.publisher", str(place), str(megabytes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert publisher.stdout is not None
        told = json.loads(publisher.stdout.readline())
        announcement = Announcement(**(told | {"endpoints": tuple(told["endpoints"])}))
        return _received(place, announcement, torch.device(device), rounds)
    finally:
        publisher.communicate("", timeout=END_S)


def _received(
    place: Path, announcement: Announcement, device: torch.device, rounds: int
) -> dict[str, float]:
    info = RunInfo("bench", 0, 1, 1, ("p",), place)
    context = ComponentContext(info, "raas", "p", 0, place, "token")
    own: dict[str, torch.Tensor] = {}
    whole, bare = [], []
    with closing(
        CudaIpcTransport(CudaIpcConfig.model_validate({}), context).receiver()
    ) as receiver:
        for round_ in range(rounds + 1):
            torch.cuda.synchronize(device)
            began = time.perf_counter()
            delivery = receiver.meet(announcement, "engine", 0, MEETING_S)
            offered = tensors_of(delivery.buckets, opened(1, delivery.buckets, device))
            for name, tensor in offered:
                own.setdefault(name, torch.empty_like(tensor)).copy_(tensor)
            torch.cuda.synchronize(device)
            received = time.perf_counter()
            receiver.done(announcement, delivery)
            copies = {name: torch.empty_like(tensor) for name, tensor in own.items()}
            torch.cuda.synchronize(device)
            copying = time.perf_counter()
            for name, copy in copies.items():
                copy.copy_(own[name])
            torch.cuda.synchronize(device)
            if round_:
                whole.append(received - began)
                bare.append(time.perf_counter() - copying)
    moved = sum(tensor.nbytes for tensor in own.values())
    return {
        "ipc_gb_s": moved / 1e9 / float(np.median(whole)),
        "ipc_over_copy": float(np.median(bare)) / float(np.median(whole)),
    }
