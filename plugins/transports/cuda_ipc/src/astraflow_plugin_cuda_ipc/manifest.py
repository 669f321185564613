"""What this plugin provides."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_transports() -> list[Component]:
    return [
        Component(
            name="cuda_ipc",
            target="astraflow_plugin_cuda_ipc.transport:CudaIpcTransport",
            config="astraflow_plugin_cuda_ipc.config:CudaIpcConfig",
            summary="engines map the memory of the GPU that they share with the trainer",
            capabilities=frozenset({"full", "adapter", "same_host", "ipc"}),
        )
    ]
