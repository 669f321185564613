"""What this plugin provides."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_transports() -> list[Component]:
    return [
        Component(
            name="collective",
            target="astraflow_plugin_collective.transport:CollectiveTransport",
            config="astraflow_plugin_collective.config:CollectiveConfig",
            summary="a broadcast by gloo or NCCL into the engines, with HTTP for late receivers",
            capabilities=frozenset({"full", "adapter", "cross_host", "collective", "plain_text"}),
        )
    ]
