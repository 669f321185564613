"""What this distribution provides; strings only, nothing heavy is imported."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_prompt_sources() -> list[Component]:
    """The prompt source ``merged``."""
    return [
        Component(
            name="merged",
            target="astraflow_contrib_merged.source:Merged",
            config="astraflow_contrib_merged.config:MergedConfig",
            summary="the prompts of several sources, each with the name of its source",
        )
    ]
