"""Buffers that a worker receives from a trainer's GPU, opened only if they are what was sent; needs torch only."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from astraflow_serving.buckets import digest_of_buffer

_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip


class TornBucket(RuntimeError):
    """What arrived is not what was sent."""


@dataclass(frozen=True)
class BufferLayout:
    """What is in a buffer: ``(name, dtype, shape, start, end)`` of each tensor, and the digest of all of it."""

    tensors: Sequence[tuple[str, str, list[int], int, int]]
    digest: str

    @property
    def size(self) -> int:
        """Bytes of the buffer."""
        return self.tensors[-1][4]


def opened(buffer: torch.Tensor, layout: BufferLayout) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in ``buffer`` (uint8, on any device), as views of it. Raises :class:`TornBucket` before the
    first of them unless its digest is the one announced."""
    found = digest_of_buffer(buffer.cpu().numpy().data)
    if found != layout.digest:
        raise TornBucket(f"{len(buffer)} bytes have the digest {found}, expected {layout.digest}")
    for name, dtype, shape, start, end in layout.tensors:
        yield name, buffer[start:end].view(_DTYPES[dtype]).view(shape)


def need_cuda(device: torch.device) -> None:
    """Raise unless buffers of another process can be received on ``device``."""
    if device.type != "cuda":
        raise RuntimeError(
            f"weights by a broadcast or by CUDA IPC need CUDA; this worker computes on {device.type!r}: use a "
            "transport that transfers files"
        )


def broadcast(group: Any, layout: BufferLayout, device: torch.device) -> torch.Tensor:
    """Take part in a broadcast of rank 0 of ``group``, a ``PyNcclCommunicator``."""
    need_cuda(device)
    buffer = torch.empty(layout.size, dtype=torch.uint8, device=device)
    group.broadcast(buffer, src=0, stream=torch.cuda.current_stream(device))
    settle(device)
    return buffer


def settle(device: torch.device) -> None:
    """Wait for copies that a GPU has only been asked for: who lent memory for them takes it back once we have answered."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def mapped(memory: Mapping[str, Any], layout: BufferLayout, device: torch.device) -> torch.Tensor:
    """Map memory that another process exported; the fields are those of
    :class:`astraflow_serving.buckets.DeviceMemory`, bytes in base64. It is unmapped when the last view of it
    is gone."""
    need_cuda(device)
    storage = torch.UntypedStorage._new_shared_cuda(
        device.index or 0,
        base64.b64decode(memory["handle"]),
        memory["size"],
        memory["offset"],
        base64.b64decode(memory["counter_handle"]),
        memory["counter_offset"],
        base64.b64decode(memory["event_handle"]),
        memory["event_sync_required"],
    )
    whole = torch.empty(0, dtype=torch.uint8, device=device).set_(storage)
    return whole[: layout.size]
