"""The keys of the reward."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from astraflow_core.config.models import ConfigModel, PositiveInt, Seconds


class MathVerifyConfig(ConfigModel):
    """``[reward] use = "math_verify"``"""

    each_policy: bool = Field(
        False,
        description="Judge each policy by its own last completion, not all of them by the last one.",
    )
    workers: PositiveInt = Field(
        1, description="Worker processes for answers that take more than a comparison of numbers."
    )
    cpu_s: Annotated[float, Field(ge=0.01, le=60)] = Field(
        0.2, description="CPU time that an answer may take; one that takes more is wrong."
    )
    deadline_s: Seconds = Field(
        10.0,
        description="Maximum time for a verdict once a worker is free, after which the episode fails.",
    )
    memory_mb: PositiveInt = Field(
        512, description="Address space that an answer may take, in MiB."
    )
