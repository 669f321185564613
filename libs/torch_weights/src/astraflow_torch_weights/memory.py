"""Buffers on a GPU that another process of this host maps, by CUDA IPC. The handles are plain bytes."""

from __future__ import annotations

from typing import Any

import torch

from astraflow_core.errors import WeightsError
from astraflow_core.types import DeviceMemory


def export(buffer: torch.Tensor) -> DeviceMemory:
    """Handles of the memory of ``buffer`` (uint8, on a GPU), for one receiver; the memory has to live until it is done."""
    storage: Any = buffer.untyped_storage()
    _, *shared = storage._share_cuda_()
    return DeviceMemory(*shared)


def mapped(memory: DeviceMemory, size: int, device: torch.device) -> torch.Tensor:
    """The first ``size`` bytes of memory that another process exported, as uint8 on ``device``. It is unmapped when the
    last view of it is gone. Raises :class:`WeightsError` if it cannot be mapped here."""
    if device.type != "cuda":
        raise WeightsError(
            f"memory of a GPU cannot be mapped on {device.type!r}: use a transport that transfers files"
        )
    unmapped: Any = torch.UntypedStorage
    try:
        storage = unmapped._new_shared_cuda(
            device.index or 0,
            memory.handle,
            memory.size,
            memory.offset,
            memory.counter_handle,
            memory.counter_offset,
            memory.event_handle,
            memory.event_sync_required,
        )
    except RuntimeError as error:
        raise WeightsError(f"the trainer's memory cannot be mapped on {device}: {error}") from error
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)[:size]
