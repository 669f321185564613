"""What this distribution provides; strings only."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_environments() -> list[Component]:
    """The environments ``textarena`` and ``textarena_players``."""
    return [
        Component(
            name="textarena",
            target="astraflow_contrib_textarena.environments:OnePlayerGame",
            config="astraflow_contrib_textarena.config:TextArenaConfig",
            summary="the games of TextArena for one player",
            capabilities=frozenset({"blocking"}),
        ),
        Component(
            name="textarena_players",
            target="astraflow_contrib_textarena.environments:PlayersGame",
            config="astraflow_contrib_textarena.config:TextArenaPlayersConfig",
            summary="the games of TextArena for several players, each a role",
            capabilities=frozenset({"blocking", "multi_role"}),
        ),
    ]


@hookimpl
def astraflow_prompt_sources() -> list[Component]:
    """The prompt source ``textarena_seeds``."""
    return [
        Component(
            name="textarena_seeds",
            target="astraflow_contrib_textarena.seeds:TextArenaSeeds",
            config="astraflow_contrib_textarena.config:TextArenaSeedsConfig",
            summary="seeds of games as tasks, train and held out apart",
            capabilities=frozenset({"generated"}),
        )
    ]
