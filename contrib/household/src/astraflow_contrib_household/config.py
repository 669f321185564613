"""The keys of the environment and of its tasks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from astraflow_core.config.models import ConfigModel, PositiveInt
from astraflow_environments.tasks import DrawnTaskKeys

TaskKind = Literal["put", "clean", "heat", "cool", "puttwo"]


class HouseholdConfig(ConfigModel):
    """``use = "household"``"""

    turns: PositiveInt = Field(50, description="Maximum actions per episode.")
    actions: Literal["text", "tools"] = Field(
        "text", description="An action after 'ACTION:' in the reply, or a call of the tool act."
    )
    demonstration: bool = Field(
        True, description="Show a task of the same kind that is solved, before the task."
    )
    demonstrated: Literal["text", "turns"] = Field(
        "text",
        description="The demonstration is a text in the first message, or the turns of a conversation before the task.",
    )
    show_actions: bool = Field(True, description="List in each turn the actions that are possible.")


class TasksConfig(DrawnTaskKeys):
    """``use = "household_tasks"``"""

    kinds: Annotated[tuple[TaskKind, ...], Field(min_length=1)] = Field(
        ("put", "clean", "heat", "cool", "puttwo"),
        description="Kinds of tasks, each as often as the others.",
    )
    objects: Annotated[int, Field(ge=1, le=10)] = Field(
        6, description="Kinds of objects in a room; there are one or two of each."
    )
