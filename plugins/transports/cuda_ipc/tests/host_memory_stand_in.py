"""Shared memory of this host in the place of a GPU's."""

from __future__ import annotations

from multiprocessing.shared_memory import SharedMemory
from typing import ClassVar

import torch

from astraflow_core.types import DeviceMemory


class HostMemoryStandIn:
    """A :class:`astraflow_plugin_cuda_ipc.offers.Buffer` whose handle is the name of a segment."""

    held: ClassVar[dict[str, SharedMemory]] = {}

    def __init__(self, data: memoryview, device: int = 0) -> None:
        self._segment = SharedMemory(create=True, size=len(data))
        self._size = len(data)
        self._segment.buf[: len(data)] = data
        self.held[self._segment.name] = self._segment

    def export(self) -> DeviceMemory:
        return DeviceMemory(self._segment.name.encode(), self._size, 0, b"", 0, b"", False)

    def free(self) -> None:
        self.held.pop(self._segment.name)
        self._segment.close()
        self._segment.unlink()


def map_stand_in(memory: DeviceMemory, size: int, device: torch.device) -> torch.Tensor:
    """What ``astraflow_torch_weights.memory.mapped`` does on a GPU."""
    segment = HostMemoryStandIn.held[memory.handle.decode()]
    return torch.frombuffer(bytearray(segment.buf[:size]), dtype=torch.uint8)
