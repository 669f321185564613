"""A buffer on the trainer's GPU."""

from __future__ import annotations

from typing import Any

import torch

from astraflow_core.errors import WeightsError
from astraflow_core.types import DeviceMemory
from astraflow_torch_weights.memory import export


class GpuBuffer:
    """See :class:`astraflow_plugin_cuda_ipc.offers.Buffer`."""

    def __init__(self, data: memoryview, device: int) -> None:
        if not torch.cuda.is_available():
            raise WeightsError("the trainer's process has no CUDA; choose http or shm")
        held = torch.frombuffer(data, dtype=torch.uint8)
        self._tensor: torch.Tensor | None = held.to(f"cuda:{device}")
        torch.cuda.synchronize(device)

    def export(self) -> DeviceMemory:
        """Handles for one receiver more."""
        assert self._tensor is not None
        return export(self._tensor)

    def free(self) -> None:
        """Give the memory back; what is still mapped goes when it is let go."""
        self._tensor = None
        cuda: Any = torch.cuda  # this call has no types
        cuda.ipc_collect()
