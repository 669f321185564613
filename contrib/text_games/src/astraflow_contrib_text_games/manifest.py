"""What this distribution provides; strings only, nothing heavy is imported."""

from __future__ import annotations

from astraflow_core.component import Component, load_attribute
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_environments() -> list[Component]:
    """The environments."""
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
            summary="a number to find by guesses that are answered with too low or too high",
            capabilities=flags,
        ),
        Component(
            name="adventure",
            target="astraflow_contrib_text_games.adventure:Adventure",
            config="astraflow_contrib_text_games.config:AdventureConfig",
            summary="a house in text after TextWorld: find a coin, or cook a meal",
            capabilities=flags,
        ),
    ]


@hookimpl
def astraflow_prompt_sources() -> list[Component]:
    """The prompt sources."""
    return [
        Component(
            name="game_levels",
            target="astraflow_contrib_text_games.levels:GameLevels",
            config="astraflow_contrib_text_games.config:LevelsConfig",
            summary="levels of key_door or binary_search, those of a seed",
            capabilities=frozenset({"generated"}),
        ),
        Component(
            name="adventure_levels",
            target="astraflow_contrib_text_games.adventure_levels:AdventureLevels",
            config="astraflow_contrib_text_games.config:AdventureLevelsConfig",
            summary="houses of adventure, drawn from a seed",
            capabilities=frozenset({"generated"}),
        ),
    ]


@hookimpl
def astraflow_views(trajectory: object) -> list[object]:
    """What an episode looks like, on the page Trajectories."""
    views: list[object] = load_attribute("astraflow_contrib_text_games.views:views")(trajectory)
    return views
