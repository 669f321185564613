"""What this distribution provides; strings only, nothing heavy is imported."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_data_policies() -> list[Component]:
    """The data policies ``greso`` and ``greso_repository``."""
    return [
        Component(
            name="greso",
            target="astraflow_plugin_greso.curator:Greso",
            config="astraflow_plugin_greso.config:GresoConfig",
            summary="skips prompts with equal rewards, more likely each time (AstraFlow)",
            capabilities=frozenset({"admit", "accept", "stateful", "random"}),
        ),
        Component(
            name="greso_repository",
            target="astraflow_plugin_greso.repository:GresoRepository",
            config="astraflow_plugin_greso.config:GresoRepositoryConfig",
            summary="skips prompts solved or failed whole, in rounds of adaptive size (GRESO)",
            capabilities=frozenset({"admit", "accept", "hold", "stateful", "random"}),
        ),
    ]
