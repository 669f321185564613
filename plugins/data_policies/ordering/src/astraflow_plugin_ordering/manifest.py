"""What this distribution provides; strings only, nothing heavy is imported."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_data_policies() -> list[Component]:
    """The data policy ``ordering``."""
    return [
        Component(
            name="ordering",
            target="astraflow_plugin_ordering.policy:Ordering",
            config="astraflow_plugin_ordering.config:OrderingConfig",
            summary="serves the oldest versions, the first to come, or the most surprising first",
            capabilities=frozenset({"key"}),
        )
    ]
