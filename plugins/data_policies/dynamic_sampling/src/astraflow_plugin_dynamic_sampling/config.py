"""The keys of the data policy ``dynamic_sampling``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from astraflow_core.config.models import ConfigModel


class DynamicSamplingConfig(ConfigModel):
    """``data = [{ use = "dynamic_sampling", … }]``"""

    tolerance: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0,
        description="Rewards within tolerance × |first reward| of the first count as equal; 0: exactly equal.",
    )
    absolute_tolerance: Annotated[float, Field(ge=0)] = Field(
        0.0, description="Added to the distance within which rewards count as equal."
    )
    singletons: Literal["drop", "keep"] = Field(
        "drop", description="Decision for a group of one sequence, which has no variance."
    )
