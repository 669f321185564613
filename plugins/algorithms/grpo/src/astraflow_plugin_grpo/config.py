"""The keys of the algorithm ``grpo``."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated

from pydantic import AfterValidator, Field

from astraflow_core.config.models import ConfigModel

NotNegative = Annotated[float, Field(ge=0)]
Knot = tuple[NotNegative, float]


def _increasing(knots: tuple[Knot, ...]) -> tuple[Knot, ...]:
    steps = [step for step, _ in knots]
    if any(later <= earlier for earlier, later in pairwise(steps)):
        raise ValueError(f"steps must increase, got {steps}")
    return knots


Schedule = Annotated[tuple[Knot, ...], Field(min_length=1), AfterValidator(_increasing)]


class GrpoConfig(ConfigModel):
    """``algorithm = { use = "grpo", … }``"""

    clip_low: Annotated[float, Field(ge=0, le=1)] = Field(
        0.2, description="The ratio is clipped below at 1 - clip_low."
    )
    clip_high: NotNegative = Field(
        0.2,
        description="The ratio is clipped above at 1 + clip_high; 0.28 is 'clip-higher' (DAPO).",
    )
    kl_coef: NotNegative = Field(
        0.0, description="Weight of the KL (k3) to the reference model; 0 loads no such model."
    )
    entropy_coef: float | Schedule = Field(
        0.0,
        description="Weight of the entropy bonus: a number, or [[update, value], …] joined by lines and "
        "constant outside, as [[40, 0.1], [80, 0.0]].",
    )
    normalize_std: bool = Field(
        True,
        description="Divide advantages by the group's standard deviation (false: as Dr. GRPO).",
    )
    std_eps: Annotated[float, Field(gt=0)] = Field(
        1e-4, description="Added to the standard deviation: 1e-4 as TRL, 1e-6 as verl."
    )
