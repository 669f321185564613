"""The keys of the data policy ``three_zones``."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from astraflow_core.config.models import ConfigModel, PositiveInt
from astraflow_core.config.or_none import OrNone


class ThreeZonesConfig(ConfigModel):
    """``[balance] use = "three_zones"``"""

    every: PositiveInt = Field(default=10, description="Versions between reports.")
    grow_above: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.10, description="Waiting fraction of a trainer above which the pool is to grow."
    )
    shrink_below: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.05, description="Waiting fraction of all trainers below which it may shrink."
    )
    margin: Annotated[float, Field(ge=1)] = Field(
        default=1.10, description="Capacity kept when it shrinks, as a multiple of what is used."
    )
    min_replicas: PositiveInt = Field(default=1, description="Minimum number of RaaS.")
    max_replicas: OrNone[PositiveInt] = Field(
        default=None,
        description="Maximum number of RaaS; required by `[raas] autoscale`. 'none': no limit.",
    )
    cool_down_s: Annotated[float, Field(ge=0)] = Field(
        default=60.0,
        description="Seconds after a change of the pool before a report counts for autoscaling.",
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.shrink_below > self.grow_above:
            raise ValueError(
                f"shrink_below = {self.shrink_below} must not be above grow_above = {self.grow_above}"
            )
        if self.max_replicas is not None and self.max_replicas < self.min_replicas:
            raise ValueError(
                f"max_replicas = {self.max_replicas} must not be below min_replicas = {self.min_replicas}"
            )
        return self
