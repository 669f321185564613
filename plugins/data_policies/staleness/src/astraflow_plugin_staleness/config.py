"""The keys of the staleness policies."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from astraflow_core.config.models import ConfigModel, PositiveInt


class StalenessDecayConfig(ConfigModel):
    """``data = [{ use = "staleness_decay", … }]``"""

    decay: Annotated[float, Field(gt=0, le=1)] = Field(
        0.5, description="Weight of a row per version that it is old; 1: all rows alike."
    )


class StalenessThrottleConfig(ConfigModel):
    """``[prompts] data = [{ use = "staleness_throttle", … }]``"""

    target: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        1.0, description="Target mean staleness of groups when they arrive, in versions."
    )
    first: PositiveInt = Field(64, description="Initial limit of prompts in flight.")
    least: PositiveInt = Field(1, description="Minimum of the limit.")
    more: PositiveInt = Field(1, description="The limit grows by this per version.")
    cut: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.7, description="The limit is multiplied by this when samples are too old."
    )
    policy: str | None = Field(
        None, description="Policy whose samples and versions count; default: the run's first."
    )

    @model_validator(mode="after")
    def _first_is_allowed(self) -> Self:
        if self.first < self.least:
            raise ValueError("first must not be below least")
        return self
