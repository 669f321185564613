"""What this plugin provides."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_transports() -> list[Component]:
    return [
        Component(
            name="delta",
            target="astraflow_plugin_delta.transport:DeltaTransport",
            config="astraflow_plugin_delta.config:DeltaConfig",
            summary="what changed between versions, near its entropy, every block's result verified",
            capabilities=frozenset({"full", "incremental", "adapter", "cross_host", "sharded"}),
        )
    ]
