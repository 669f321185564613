"""The keys of the games and of their levels."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from astraflow_core.config.models import ConfigModel, PositiveInt
from astraflow_core.config.or_none import OrNone
from astraflow_environments.tasks import DrawnTaskKeys

AdventureKind = Literal["coin", "cooking"]


class GameConfig(ConfigModel):
    """``use = "key_door"`` or ``"binary_search"``"""

    actions: Literal["text", "tools"] = Field(
        "text", description="A move is the last word of the reply, or a call of a tool."
    )
    wording: Literal["plain", "terse"] = Field(
        "plain",
        description="Sentences, or the state alone, for models that do not understand language.",
    )
    step_rewards: bool | Literal["distance"] = Field(
        True,
        description="true: reward each step toward the goal (key and door; bits of the number); false: the end alone; "
        "'distance': in key_door also each move on the way, less what leads away. A game that is won earns 1 in any case.",
    )


class LevelsConfig(ConfigModel):
    """``use = "game_levels"``"""

    game: Literal["key_door", "binary_search"] = Field(
        "key_door", description="The game whose levels these are."
    )
    squares: Annotated[int, Field(ge=3, le=26)] = Field(
        6, description="Squares of the corridor of key_door."
    )
    highest: Annotated[int, Field(ge=2, le=10**6)] = Field(
        63, description="Highest number of binary_search; the lowest is 1."
    )
    turns: OrNone[PositiveInt] = Field(
        None,
        description="Maximum turns per episode; 'none': 6 in key_door, as many as halving needs in binary_search.",
    )
    split: Literal["train", "held_out"] = Field(
        "train", description="By the level alone: about four fifths of all levels, or the others."
    )
    size: OrNone[PositiveInt] = Field(None, description="Levels; 'none': the whole split.")
    seed: Annotated[int, Field(ge=0)] = Field(
        0, description="Seed that selects the levels and their order."
    )


class AdventureConfig(ConfigModel):
    """``use = "adventure"``"""

    turns: PositiveInt = Field(50, description="Maximum commands per episode.")
    actions: Literal["text", "tools"] = Field(
        "text", description="A command is the last line of the reply, or a call of the tool act."
    )
    show_actions: bool = Field(
        True, description="List in each turn the commands that are possible."
    )


class AdventureLevelsConfig(DrawnTaskKeys):
    """``use = "adventure_levels"``"""

    kinds: Annotated[tuple[AdventureKind, ...], Field(min_length=1)] = Field(
        ("coin", "cooking"), description="Kinds of games, each as often as the others."
    )
    rooms: Annotated[int, Field(ge=2, le=16)] = Field(6, description="Rooms of a house.")
    ingredients: Annotated[int, Field(ge=1, le=6)] = Field(
        2, description="Ingredients of a meal; two more lie around that it does not need."
    )
