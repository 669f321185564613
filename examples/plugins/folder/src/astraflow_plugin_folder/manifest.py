"""What this distribution provides: strings only, so that listing it imports nothing else."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_transports() -> list[Component]:
    """The transport ``folder``."""
    return [
        Component(
            name="folder",
            target="astraflow_plugin_folder.transport:FolderTransport",
            config="astraflow_plugin_folder.transport:FolderConfig",
            summary="whole versions as files in a folder that trainer and RaaS share",
            capabilities=frozenset({"full", "adapter", "same_host"}),
        )
    ]
