"""The keys of both forms of GRESO."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from astraflow_core.config.models import ConfigModel, PositiveInt
from astraflow_core.config.or_none import OrNone

Share = Annotated[float, Field(ge=0, le=1)]
Probability = Annotated[float, Field(gt=0, lt=1)]


class ExplorationConfig(ConfigModel):
    """What both forms have; the defaults are those of the paper's runs."""

    policy: str | None = Field(
        None, description="Policy whose groups count; default: the run's first."
    )
    p_easy: Probability = Field(0.5, description="First exploration probability of easy prompts.")
    p_hard: Probability = Field(0.5, description="First exploration probability of hard prompts.")
    step: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.01, description="Amount by which the controller changes a probability at once; 0: never."
    )
    target_easy: Share = Field(
        0.083, description="Share of easy groups without variance that the controller aims at."
    )
    target_hard: Share = Field(
        0.167, description="Share of hard groups without variance that the controller aims at."
    )
    tolerance: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0,
        description="Rewards within tolerance × |first reward| of the first count as equal, as in "
        "`dynamic_sampling`; 0: exactly equal.",
    )
    absolute_tolerance: Annotated[float, Field(ge=0)] = Field(
        0.0, description="Added to the distance within which rewards count as equal."
    )
    lowest: Probability = Field(0.01, description="Exploration probabilities stay at or above.")
    highest: Probability = Field(0.99, description="Exploration probabilities stay at or below.")

    @model_validator(mode="after")
    def _probabilities_lie_within(self) -> Self:
        for key, first in (("p_easy", self.p_easy), ("p_hard", self.p_hard)):
            if not self.lowest <= first <= self.highest:
                raise ValueError(
                    f"{key} = {first} must lie between lowest = {self.lowest} and highest = {self.highest}"
                )
        return self


class GresoConfig(ExplorationConfig):
    """``[prompts] data = [{ use = "greso", … }]``: the hyper-parameters of the paper's runs."""

    floor_easy: Share = Field(0.05, description="Minimum probability of an easy prompt.")
    floor_hard: Share = Field(0.30, description="Minimum probability of a hard prompt.")
    easy_above: float = Field(
        0.5, description="A group without variance is easy if its mean reward is above this."
    )


class GresoRepositoryConfig(ExplorationConfig):
    """``[prompts] data = [{ use = "greso_repository", … }]``: the defaults of the repository."""

    target_easy: Share = Field(1 / 12, description="Share of easy groups that is aimed at.")
    target_hard: Share = Field(1 / 6, description="Share of hard groups that is aimed at.")
    floor: Probability = Field(0.01, description="Minimum probability of any prompt.")
    easy_mean: float = Field(0.98, description="A group is easy from this mean reward on.")
    hard_mean: float = Field(0.11, description="A group is hard up to this mean reward.")
    lowest: Probability = Field(0.05, description="Exploration probabilities stay at or above.")
    highest: Probability = Field(0.95, description="Exploration probabilities stay at or below.")
    sampling_batch: OrNone[PositiveInt] = Field(
        None, description="Prompts of the first round of a step; 'none': no rounds."
    )
    train_sequences: OrNone[PositiveInt] = Field(
        None, description="With rounds: sequences that a step needs, the policy's batch_sequences."
    )
    smallest_batch: PositiveInt = Field(64, description="Minimum prompts of a round.")

    @model_validator(mode="after")
    def _rounds_are_whole(self) -> Self:
        if (self.sampling_batch is None) != (self.train_sequences is None):
            raise ValueError("sampling_batch and train_sequences are given together or not at all")
        if self.hard_mean >= self.easy_mean:
            raise ValueError("hard_mean must be below easy_mean")
        return self
