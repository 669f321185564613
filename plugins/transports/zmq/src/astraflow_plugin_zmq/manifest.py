"""What this plugin provides."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_transports() -> list[Component]:
    return [
        Component(
            name="zmq",
            target="astraflow_plugin_zmq.transport:ZmqTransport",
            config="astraflow_plugin_zmq.config:ZmqConfig",
            summary="whole versions over ZeroMQ, encrypted with keys of the run's token",
            capabilities=frozenset({"full", "adapter", "cross_host"}),
        )
    ]
