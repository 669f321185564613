"""The keys of the prompt filters."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from astraflow_core.config.models import ConfigModel, PositiveInt
from astraflow_policy_tools.schedule import Schedule, values

Share = Annotated[float, Field(ge=0, le=1)]
OF_POLICY = "Policy whose groups count; default: the run's first."


class SolvedFilterConfig(ConfigModel):
    """``[prompts] data = [{ use = "solved_filter", … }]``"""

    solved: Annotated[float, Field(gt=0, le=1)] = Field(
        0.95, description="A prompt is dropped once its success rate reaches this."
    )
    memory: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.9, description="Weight of the success rate so far; the newest group has the rest."
    )
    reward_above: float = Field(0.0, description="A sequence with a reward above this succeeded.")
    revisit: Share = Field(0.0, description="Probability that a dropped prompt is tried anyway.")
    policy: str | None = Field(None, description=OF_POLICY)


class CurriculumConfig(ConfigModel):
    """``[prompts] data = [{ use = "curriculum", … }]``"""

    by: Literal["failure_rate", "field", "length"] = Field(
        "failure_rate",
        description="'failure_rate': 1 - running mean of rewards in this run; 'field': a number in the "
        "prompt's data; 'length': characters of the prompt.",
    )
    field: str = Field("difficulty", description="Key of the number in the prompt's data.")
    low: Schedule = Field(
        0.0, description="Smallest value that is admitted: a number, or [[version, number], …]."
    )
    high: Schedule = Field(
        1.0, description="Largest value that is admitted: a number, or [[version, number], …]."
    )
    explore: Share = Field(
        0.1,
        description="Probability of a prompt outside the bounds, so that all are seen eventually.",
    )
    memory: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.8, description="For 'failure_rate': weight of the mean so far."
    )
    policy: str | None = Field(
        None, description="Policy whose versions and groups count; default: the run's first."
    )

    @model_validator(mode="after")
    def _bounds_are_ordered(self) -> Self:
        if min(values(self.high)) < min(values(self.low)):
            raise ValueError("high falls below every low: nothing would be admitted")
        return self


class MixingConfig(ConfigModel):
    """``[prompts] data = [{ use = "mixing", weights = { math = 3, code = 1 } }]``"""

    weights: dict[str, Schedule] = Field(
        min_length=1,
        description="Source → its share of the prompts that are rolled out, relative to the others: a "
        "number, or [[version, number], …].",
    )
    field: str = Field("source", description="Key of the source in the prompt's data.")
    policy: str | None = Field(
        None, description="Policy whose versions count; default: the run's first."
    )

    @model_validator(mode="after")
    def _weights_are_shares(self) -> Self:
        for source, weight in self.weights.items():
            if min(values(weight)) < 0:
                raise ValueError(f"the weight of {source!r} must not be negative")
        if not any(min(values(weight)) > 0 for weight in self.weights.values()):
            raise ValueError("one weight at least must be positive at every version")
        return self


class QuarantineConfig(ConfigModel):
    """``[prompts] data = [{ use = "quarantine", … }]``"""

    after: PositiveInt = Field(
        2, description="Consecutive failures after which a prompt is quarantined."
    )
    rest: PositiveInt = Field(
        2,
        description="Number of offers for which it is then skipped, doubled after each further failure.",
    )
    longest: Annotated[int, Field(ge=1, lt=2**30)] = Field(
        64, description="Maximum number of offers for which it is skipped."
    )

    @model_validator(mode="after")
    def _rest_is_shortest(self) -> Self:
        if self.rest > self.longest:
            raise ValueError("rest must not exceed longest")
        return self
