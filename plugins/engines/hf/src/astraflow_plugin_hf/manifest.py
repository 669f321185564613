"""What this distribution provides; strings only, nothing heavy is imported."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_engines() -> list[Component]:
    """The engine ``hf``."""
    return [
        Component(
            name="hf",
            target="astraflow_plugin_hf.engine:HFEngine",
            config="astraflow_plugin_hf.config:HFConfig",
            summary="the continuous batching of transformers",
            capabilities=frozenset(
                {
                    "score",
                    "pause.keep",
                    "pause.wait",
                    "pause.abort",
                    "weights.path",
                    "weights.inflight",
                    "router_replay",
                }
            ),
        )
    ]
