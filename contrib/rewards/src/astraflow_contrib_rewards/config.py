"""The keys of the rewards."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from astraflow_core.config.models import ConfigModel


class AnswerConfig(ConfigModel):
    """Keys of every reward that compares with an answer."""

    each_policy: bool = Field(
        False,
        description="Judge each policy by its own last completion, not all of them by the last one.",
    )


class ExactConfig(AnswerConfig):
    """``[reward] use = "exact"``"""

    partial: Literal["none", "positions"] = Field(
        "none",
        description="positions: the share of positions that agree, the end being one of them.",
    )


class NumericConfig(AnswerConfig):
    """``[reward] use = "numeric"``"""
