"""The keys of the environment and of its games."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from astraflow_contrib_textworld.making import KIND, Settings, checked_settings
from astraflow_core.config.models import ConfigModel, PositiveInt
from astraflow_core.config.or_none import OrNone
from astraflow_environments.tasks import DrawnTaskKeys


class TextWorldConfig(ConfigModel):
    """``use = "textworld"``"""

    turns: PositiveInt = Field(
        50, description="Maximum commands per episode, after which it is truncated."
    )
    actions: Literal["text", "tools"] = Field(
        "text", description="A command is the last line of the reply, or a call of the tool act."
    )
    show_actions: bool = Field(
        True, description="List in each turn the commands that TextWorld calls admissible."
    )
    rewards: Literal["share", "points"] = Field(
        "share",
        description="Reward of a point of the game: its share of 1, or 1.",
    )


class TextWorldGamesConfig(DrawnTaskKeys):
    """``use = "textworld_games"``"""

    kind: Annotated[str, Field(pattern=KIND)] = Field(
        "tw-coin_collector",
        description="The kind of games, as tw-make names it: 'custom', 'tw-simple', 'tw-cooking' and so on.",
    )
    settings: Annotated[Settings, AfterValidator(checked_settings)] = Field(
        {},
        description="Options of tw-make for this kind, such as { level = 5 } or { recipe = 2, cook = true }.",
    )


class TextWorldFolderConfig(ConfigModel):
    """``use = "textworld_folder"``"""

    path: Path = Field(
        description="Folder with games, .z8 files, each with its .json next to it, as tw-make writes them."
    )
    split: Literal["all", "train", "held_out"] = Field(
        "all",
        description="All games, about four fifths of them by the content of their .json, or the rest.",
    )
    limit: OrNone[PositiveInt] = Field(
        None, description="Only the first games by name, as many as this; 'none': all."
    )
