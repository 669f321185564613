"""The keys of the environment and of its seeds."""

from __future__ import annotations

import string
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from astraflow_core.config.models import ConfigModel, PositiveInt
from astraflow_core.config.or_none import OrNone
from astraflow_environments.tasks import DrawnTaskKeys

_AROUND = string.punctuation + string.whitespace


def plain_name(name: str) -> str:
    """A name without what a model may write otherwise: case, spaces, and signs around it."""
    name = " ".join(name.casefold().split())
    return name.strip(_AROUND) or name


class GymnasiumConfig(ConfigModel):
    """``use = "gymnasium"``"""

    id: Annotated[str, Field(min_length=1)] = Field(
        description="The environment: an id such as 'Blackjack-v1', 'module:id', which imports the module first, or "
        "'module:Class'."
    )
    arguments: dict[str, Any] = Field({}, description="Arguments of gymnasium.make.")
    options: dict[str, Any] = Field(
        {}, description="Options of each reset; those of a prompt are added, data['options']."
    )
    observations: Literal["space", "render"] = Field(
        "space",
        description="Text shown to the model: the observation, written out by its space, or what the "
        "environment renders (render_mode 'ansi').",
    )
    fields: tuple[str, ...] = Field(
        (), description="Keys of a Dict observation that are shown; none: all of them."
    )
    actions: Literal["text", "tools"] = Field(
        "text", description="An action is the reply, or a call of the tool act."
    )
    action_names: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (), description="Names of the actions of a Discrete space, in its order."
    )
    legal_actions: OrNone[str] = Field(
        None,
        description="Key of info with the actions that are possible now: a mask, a list of numbers, or of texts. Others "
        "are not made.",
    )
    instructions: OrNone[str] = Field(
        None,
        description="Beginning of the first message; 'none': instructions made from the action space.",
    )
    turns: PositiveInt = Field(
        50,
        description="Maximum replies per episode, those without an action included, after which it is truncated.",
    )
    illegal_reward: float = Field(0.0, description="Reward for a reply that is not a legal action.")
    illegal_message: OrNone[str] = Field(
        None, description="Answer to such a reply; 'none': a description of the mistake."
    )
    metrics: tuple[str, ...] = Field(
        (), description="Keys of info with numbers that are metrics of the episode."
    )
    observed_state: bool = Field(
        False,
        description="Whether the observation contains the whole state, for algorithms that compare actions of equal states.",
    )

    @model_validator(mode="after")
    def _names_differ(self) -> GymnasiumConfig:
        names = list(map(plain_name, self.action_names))
        for name in names:
            if names.count(name) > 1:
                raise ValueError(
                    f"action_names has {name!r} twice, without case and the signs around it"
                )
        return self


class GymnasiumSeedsConfig(DrawnTaskKeys):
    """``use = "gymnasium_seeds"``"""

    options: dict[str, Any] = Field({}, description="Options of the reset, data['options'].")
