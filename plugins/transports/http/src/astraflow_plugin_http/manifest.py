"""What this plugin provides."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_transports() -> list[Component]:
    return [
        Component(
            name="http",
            target="astraflow_plugin_http.transport:HttpTransport",
            config="astraflow_plugin_http.config:HttpConfig",
            summary="whole versions over HTTP, several streams, every block verified",
            capabilities=frozenset({"full", "adapter", "cross_host", "sharded"}),
        )
    ]
