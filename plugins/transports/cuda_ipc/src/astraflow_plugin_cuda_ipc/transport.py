"""The component: gives each side its half."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from astraflow_core.types import ComponentContext
from astraflow_plugin_cuda_ipc.config import CudaIpcConfig
from astraflow_plugin_cuda_ipc.offers import Offers
from astraflow_plugin_cuda_ipc.publisher import CudaIpcPublisher
from astraflow_weights.direct.receiver import DirectHttpReceiver


class CudaIpcTransport:
    """Versions out of the trainer's GPU; see :mod:`astraflow_core.protocols.transport`."""

    def __init__(self, config: CudaIpcConfig, context: ComponentContext) -> None:
        self._config, self._context = config, context

    def publisher(self) -> CudaIpcPublisher:
        """A publisher for the context's policy that listens at once, on this host only."""
        # A RaaS does not need torch and works without it.
        from astraflow_plugin_cuda_ipc.gpu_buffer import GpuBuffer

        config = self._config
        make = partial(GpuBuffer, device=config.device)
        offers = Offers(make, config.bucket_mb << 20, config.lease_s)
        return CudaIpcPublisher(self._context.policy, self._context.token, offers)

    def receiver(self) -> DirectHttpReceiver:
        """A receiver for any policy of the run; memory is mapped by engines."""
        config = self._config
        folder = Path(config.directory) if config.directory else self._context.directory
        return DirectHttpReceiver(folder, self._context.token, streams=config.streams)
