"""What this distribution provides; strings only, nothing heavy is imported."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_data_policies() -> list[Component]:
    """The data policy ``three_zones``."""
    return [
        Component(
            name="three_zones",
            target="astraflow_plugin_three_zones.policy:ThreeZones",
            config="astraflow_plugin_three_zones.config:ThreeZonesConfig",
            summary="decides how many RaaS to run, by the three-zone rule of the paper",
            capabilities=frozenset({"scale"}),
        )
    ]
