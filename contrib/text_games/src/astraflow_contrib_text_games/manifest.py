"""What this distribution provides; strings only, nothing heavy is imported."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_environments() -> list[Component]:
    """The environments ``key_door`` and ``binary_search``."""
    flags = frozenset({"deterministic", "tools"})
    return [
        Component(
            name="key_door",
            target="astraflow_contrib_text_games.key_door:KeyDoor",
            config="astraflow_contrib_text_games.config:GameConfig",
            summary="a corridor with a key to take and a door to open",
            capabilities=flags,
        ),
        Component(
            name="binary_search",
            target="astraflow_contrib_text_games.binary_search:BinarySearch",
            config="astraflow_contrib_text_games.config:GameConfig",
            summary="a number to find by guesses that are told to be too low or too high",
            capabilities=flags,
        ),
    ]


@hookimpl
def astraflow_prompt_sources() -> list[Component]:
    """The prompt source ``game_levels``."""
    return [
        Component(
            name="game_levels",
            target="astraflow_contrib_text_games.levels:GameLevels",
            config="astraflow_contrib_text_games.config:LevelsConfig",
            summary="levels of key_door or binary_search, those of a seed",
            capabilities=frozenset({"generated"}),
        )
    ]
