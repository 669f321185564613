"""What this distribution provides; strings only, nothing heavy is imported."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_data_policies() -> list[Component]:
    """The data policy ``replay``."""
    return [
        Component(
            name="replay",
            target="astraflow_plugin_replay.policy:Replay",
            config="astraflow_plugin_replay.config:ReplayConfig",
            summary="mixes rows of earlier batches into each batch",
            capabilities=frozenset({"draw", "stateful", "random"}),
        ),
    ]
