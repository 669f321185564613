"""The keys of the rewards."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from astraflow_core.config.models import ConfigModel


class ExactConfig(ConfigModel):
    """``[reward] use = "exact"``"""

    partial: Literal["none", "positions"] = Field(
        "none",
        description="positions: the share of positions that agree, the end being one of them.",
    )


class NumericConfig(ConfigModel):
    """``[reward] use = "numeric"``; it has no keys."""
