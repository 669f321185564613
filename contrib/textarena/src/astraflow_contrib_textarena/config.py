"""The keys of the games and of their seeds."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from astraflow_core.config.models import ConfigModel, PositiveInt
from astraflow_core.config.or_none import OrNone
from astraflow_environments.tasks import DrawnTaskKeys

MessageKind = Literal[
    "prompt", "player_action", "game_action_description", "game_message", "game_board", "game_admin"
]


class TextArenaConfig(ConfigModel):
    """``use = "textarena"``"""

    game: Annotated[str, Field(min_length=1)] = Field(
        description="The game as TextArena names it, such as 'Mastermind-v0'; 'module:game' imports the module first."
    )
    arguments: dict[str, Any] = Field(
        {}, description="Arguments of the game, in place of those that its name stands for."
    )
    instructions: OrNone[str] = Field(
        None, description="Beginning of a player's first message; 'none': the rules alone."
    )
    shown: tuple[MessageKind, ...] = Field(
        (), description="Kinds of messages that players see; none: all of them."
    )
    brackets: bool = Field(
        True, description="Put a reply without brackets into brackets, in which games expect moves."
    )
    turns: PositiveInt = Field(
        100, description="Maximum replies per episode, of all players, after which it is truncated."
    )


class TextArenaPlayersConfig(TextArenaConfig):
    """``use = "textarena_players"``"""

    players: Annotated[int, Field(ge=2, le=15)] = Field(
        2, description="Players; their roles are player_0, player_1 and so on."
    )
    seats: Literal["fixed", "drawn"] = Field(
        "fixed",
        description="Whether player_0 always is the game's Player 0, or the seed draws who sits where.",
    )


class TextArenaSeedsConfig(DrawnTaskKeys):
    """``use = "textarena_seeds"``"""
