"""What this distribution provides; strings only."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_environments() -> list[Component]:
    """The environment ``gymnasium``."""
    return [
        Component(
            name="gymnasium",
            target="astraflow_contrib_gymnasium.environment:GymnasiumEnvironment",
            config="astraflow_contrib_gymnasium.config:GymnasiumConfig",
            summary="any environment of Gymnasium that can be described in text, by id or class",
            capabilities=frozenset({"blocking", "tools"}),
        )
    ]


@hookimpl
def astraflow_prompt_sources() -> list[Component]:
    """The prompt source ``gymnasium_seeds``."""
    return [
        Component(
            name="gymnasium_seeds",
            target="astraflow_contrib_gymnasium.seeds:GymnasiumSeeds",
            config="astraflow_contrib_gymnasium.config:GymnasiumSeedsConfig",
            summary="seeds of environments as tasks, train and held out apart",
            capabilities=frozenset({"generated"}),
        )
    ]
