"""The keys of the prompts and of the reward."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from astraflow_core.config.models import ConfigModel, PositiveInt


class PromptsConfig(ConfigModel):
    """``use = "reasoning_gym"``"""

    datasets: Annotated[dict[str, dict[str, Any]], Field(min_length=1)] = Field(
        description="Name of a dataset of reasoning-gym → its own settings; taken in turn."
    )
    size: PositiveInt = Field(1000, description="Prompts in all.")
    seed: Annotated[int, Field(ge=0)] = Field(0, description="Seed of every dataset.")
    split: Literal["all", "train", "held_out"] = Field(
        "all", description="By the question's text: nine tenths, or the other tenth."
    )
    suffix: str = Field("", description="Text added to each question.")


class RewardConfig(ConfigModel):
    """``[reward] use = "reasoning_gym"``"""

    extract: Literal["text", "last_number"] = Field(
        "text", description="Scored part of the completion: the whole text, or its last number."
    )
    binary: bool = Field(
        True,
        description="Reward 1 from a score of 0.99 on, else 0; false: the score, with its partial credit.",
    )
