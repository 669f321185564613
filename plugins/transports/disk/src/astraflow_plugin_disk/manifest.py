"""What this plugin provides."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_transports() -> list[Component]:
    return [
        Component(
            name="disk",
            target="astraflow_plugin_disk.transport:DiskTransport",
            config="astraflow_plugin_disk.config:DiskConfig",
            summary="whole versions in a folder or an object store, through fsspec",
            capabilities=frozenset({"full", "adapter", "cross_host"}),
        )
    ]
