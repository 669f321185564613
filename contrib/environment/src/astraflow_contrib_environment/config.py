"""Keys of the workflows."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from astraflow_core.config.models import PositiveInt
from astraflow_core.config.or_none import OrNone
from astraflow_environments.keys import EnvironmentKeys


class PlayKeys(EnvironmentKeys):
    """What both workflows have."""

    max_turns: PositiveInt = Field(
        100, description="Maximum replies per episode; a longer one is cut off."
    )
    max_tokens: PositiveInt = Field(
        100_000, description="Maximum sampled tokens per episode; a longer one is cut off."
    )
    discount: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0,
        description="The reward of an episode is the sum of what its turns earned, each times this to the power of the "
        "number of turns before it.",
    )


class EnvironmentConfig(PlayKeys):
    """``[workflow] use = "environment"``"""

    policy: OrNone[str] = Field(
        None, description="Policy that plays; 'none': the only one of the run."
    )
    rewarded_by: Literal["environment", "run"] = Field(
        "environment",
        description="Source of an episode's reward: the sum of the environment's rewards, or the run's "
        "[reward] component; per-turn rewards are kept.",
    )


class RolesConfig(PlayKeys):
    """``[workflow] use = "team"``"""

    roles: dict[str, str] = Field(
        {}, description="Role of the environment → the policy, or frozen engine, that plays it."
    )
    policy: OrNone[str] = Field(
        None,
        description="Policy of the roles that are not listed; 'none': the only one of the run, or each role is listed.",
    )
