"""What this plugin provides."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_transports() -> list[Component]:
    return [
        Component(
            name="shm",
            target="astraflow_plugin_shm.transport:ShmTransport",
            config="astraflow_plugin_shm.config:ShmConfig",
            summary="whole versions in shared memory of one host, mapped and not copied",
            capabilities=frozenset({"full", "adapter", "same_host"}),
        )
    ]
