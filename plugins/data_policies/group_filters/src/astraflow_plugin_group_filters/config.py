"""The keys of the group filters."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from astraflow_core.config.models import ConfigModel, PositiveInt
from astraflow_core.config.or_none import OrNone

Bound = Annotated[float, Field(allow_inf_nan=False)]


class _Bounds(ConfigModel):
    low: OrNone[Bound] = Field(None, description="Minimum that is kept; 'none': no bound.")
    high: OrNone[Bound] = Field(None, description="Maximum that is kept; 'none': no bound.")

    @model_validator(mode="after")
    def _something_is_kept(self) -> Self:
        if self.low is None and self.high is None:
            raise ValueError("set low, high or both: without a bound nothing is filtered")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError("low must not exceed high")
        return self


class RewardFilterConfig(_Bounds):
    """``data = [{ use = "reward_filter", low = 0.2, high = 0.8 }]``"""

    of: Literal["mean", "min", "max", "std"] = Field(
        "mean", description="Statistic of the group's rewards ('std' with n - 1)."
    )


class LengthFilterConfig(_Bounds):
    """``data = [{ use = "length_filter", high = 4096 }]``"""

    of: Literal["mean", "min", "max"] = Field(
        "max", description="Statistic of the lengths of the group's sequences."
    )
    tokens: Literal["all", "trained"] = Field("all", description="Tokens that are counted.")


class OverlongFilterConfig(ConfigModel):
    """``data = [{ use = "overlong_filter", … }]``"""

    most: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.5, description="Largest share of sequences cut off by the token limit that is kept."
    )


class PartialGroupsConfig(ConfigModel):
    """``data = [{ use = "partial_groups", at_least = 4 }]``"""

    at_least: PositiveInt = Field(2, description="Minimum number of sequences of a kept group.")
