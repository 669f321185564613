"""The keys of the data policy ``replay``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from astraflow_core.config.models import ConfigModel, PositiveInt
from astraflow_core.config.or_none import OrNone


class ReplayConfig(ConfigModel):
    """``data = [{ use = "replay", ratio = 0.3 }]``"""

    ratio: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.5, description="Share of a batch that is served again, if the pool has enough rows."
    )
    selector: Literal["latest", "uniform", "prioritised"] = Field(
        "latest",
        description="'latest': what was trained for the first time last; 'uniform': at random; 'prioritised': at random, by "
        "(|reward - group mean| / (group std + 1e-5)) ** exponent.",
    )
    pool_size: PositiveInt = Field(
        10_000,
        description="Number of candidates: the different rows that were trained for the first time most recently.",
    )
    reuse_limit: OrNone[PositiveInt] = Field(
        None, description="Maximum number of times that a row is served again; 'none': no limit."
    )
    max_staleness: Annotated[int, Field(ge=0)] | None = Field(
        None, description="Staleness bound of rows served again; default, and at most: the run's."
    )
    exponent: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        1.0, description="Exponent of the priority; 0: uniform, except for rows without a priority."
    )
