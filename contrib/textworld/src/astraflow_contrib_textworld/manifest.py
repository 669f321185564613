"""What this distribution provides; strings only."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)
ASTRAFLOW_ENVIRONMENT = "astraflow_contrib_textworld.interpreter:environment"


@hookimpl
def astraflow_environments() -> list[Component]:
    """The environment ``textworld``."""
    return [
        Component(
            name="textworld",
            target="astraflow_contrib_textworld.environment:TextWorldEnvironment",
            config="astraflow_contrib_textworld.config:TextWorldConfig",
            summary="games of TextWorld, made from a seed or kept in a folder",
            capabilities=frozenset({"blocking", "deterministic", "tools"}),
        )
    ]


@hookimpl
def astraflow_prompt_sources() -> list[Component]:
    """The prompt sources."""
    return [
        Component(
            name="textworld_games",
            target="astraflow_contrib_textworld.sources:TextWorldGames",
            config="astraflow_contrib_textworld.config:TextWorldGamesConfig",
            summary="games that TextWorld makes from seeds, train and held out apart",
            capabilities=frozenset({"generated"}),
        ),
        Component(
            name="textworld_folder",
            target="astraflow_contrib_textworld.sources:TextWorldFolder",
            config="astraflow_contrib_textworld.config:TextWorldFolderConfig",
            summary="games in a folder, as tw-make writes them, train and held out apart",
        ),
    ]
