"""The core's own manifest: the plugin ``core``."""

from __future__ import annotations

from astraflow_core.component import API_VERSION, Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = API_VERSION


@hookimpl
def astraflow_launchers() -> list[Component]:
    """The launcher that a run uses unless it names another."""
    return [
        Component(
            name="local",
            target="astraflow_core.launch.local:LocalLauncher",
            config="astraflow_core.launch.local_config:LocalLauncherConfig",
            summary="starts the processes of a run on this host",
            capabilities=frozenset({"local"}),
        )
    ]


@hookimpl
def astraflow_data_policies() -> list[Component]:
    """What says how many RaaS there should be, unless a run names another."""
    return [
        Component(
            name="three_zones",
            target="astraflow_core.dataflow.three_zones:ThreeZones",
            config="astraflow_core.dataflow.three_zones_config:ThreeZonesConfig",
            summary="how many RaaS there should be, by the three-zone rule of the paper",
            capabilities=frozenset({"scale"}),
        )
    ]


@hookimpl
def astraflow_prompt_sources() -> list[Component]:
    """What makes one prompt source of several."""
    return [
        Component(
            name="merged",
            target="astraflow_core.dataflow.merged:Merged",
            config="astraflow_core.dataflow.merged_config:MergedConfig",
            summary="the prompts of several sources, each with the name of its own",
        )
    ]
