"""What this distribution provides; strings only, nothing heavy is imported."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_data_policies() -> list[Component]:
    """The data policy ``mixed_streams``."""
    return [
        Component(
            name="mixed_streams",
            target="astraflow_plugin_mixed_streams.policy:MixedStreams",
            config="astraflow_plugin_mixed_streams.config:MixedStreamsConfig",
            summary="mixes rows sampled by another policy into batches, or shares its stream",
            capabilities=frozenset({"borrow"}),
        ),
    ]
