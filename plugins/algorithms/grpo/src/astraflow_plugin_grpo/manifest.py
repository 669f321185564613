"""What this distribution provides; strings only, nothing heavy is imported."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_algorithms() -> list[Component]:
    """The algorithm ``grpo``."""
    return [
        Component(
            name="grpo",
            target="astraflow_plugin_grpo.algorithm:Grpo",
            config="astraflow_plugin_grpo.config:GrpoConfig",
            summary="group-relative advantages, clipped ratio, token mean over the global batch",
            capabilities=frozenset({"reference", "entropy"}),
        )
    ]
