"""What this distribution provides; strings only, nothing heavy is imported."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_data_policies() -> list[Component]:
    """The data policies ``solved_filter``, ``curriculum``, ``mixing`` and ``quarantine``."""
    return [
        Component(
            name="solved_filter",
            target="astraflow_plugin_prompt_filters.solved:SolvedFilter",
            config="astraflow_plugin_prompt_filters.config:SolvedFilterConfig",
            summary="drops prompts that are solved nearly always",
            capabilities=frozenset({"admit", "accept", "stateful", "random"}),
        ),
        Component(
            name="curriculum",
            target="astraflow_plugin_prompt_filters.curriculum:Curriculum",
            config="astraflow_plugin_prompt_filters.config:CurriculumConfig",
            summary="admits prompts of a difficulty, or length, that changes with the version",
            capabilities=frozenset({"admit", "accept", "stateful", "random"}),
        ),
        Component(
            name="mixing",
            target="astraflow_plugin_prompt_filters.mixing:Mixing",
            config="astraflow_plugin_prompt_filters.config:MixingConfig",
            summary="mixes prompts of several sources by weights that may change with the version",
            capabilities=frozenset({"admit", "stateful"}),
        ),
        Component(
            name="quarantine",
            target="astraflow_plugin_prompt_filters.quarantine:Quarantine",
            config="astraflow_plugin_prompt_filters.config:QuarantineConfig",
            summary="skips prompts whose rollouts keep failing",
            capabilities=frozenset({"admit", "stateful"}),
        ),
    ]
