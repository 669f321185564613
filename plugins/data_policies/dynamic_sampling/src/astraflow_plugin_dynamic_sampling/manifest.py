"""What this distribution provides; strings only, nothing heavy is imported."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_data_policies() -> list[Component]:
    """The data policy ``dynamic_sampling``."""
    return [
        Component(
            name="dynamic_sampling",
            target="astraflow_plugin_dynamic_sampling.policy:DynamicSampling",
            config="astraflow_plugin_dynamic_sampling.config:DynamicSamplingConfig",
            summary="drops groups with equal rewards, from which nothing can be learned",
            capabilities=frozenset({"accept", "stateful"}),
        )
    ]
