"""What this distribution provides: strings only, so that listing it imports nothing else."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_trainers() -> list[Component]:
    """The trainer ``sample_thing``."""
    return [
        Component(
            name="sample_thing",
            target="astraflow_plugin_sample_thing.component:SampleThing",
            config="astraflow_plugin_sample_thing.component:SampleThingConfig",
            summary="trains a table of logits by the gradient in closed form",
            capabilities=frozenset({"proximal", "checkpoint"}),
        )
    ]
