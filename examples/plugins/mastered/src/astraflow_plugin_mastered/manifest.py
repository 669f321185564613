"""What this distribution provides: strings only, so that listing it imports nothing else."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_data_policies() -> list[Component]:
    """The data policy ``mastered``."""
    return [
        Component(
            name="mastered",
            target="astraflow_plugin_mastered.policy:Mastered",
            config="astraflow_plugin_mastered.policy:MasteredConfig",
            summary="rests prompts that every sample solves, and looks at them again by chance",
            capabilities=frozenset({"admit", "accept", "stateful", "random"}),
        )
    ]
