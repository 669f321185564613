"""The data policy ``sample_thing``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from astraflow_core.config.models import ConfigModel
from astraflow_core.types import ComponentContext, GroupSummary, Verdict


class SampleThingConfig(ConfigModel):
    """``data = [{ use = "sample_thing" }]``"""

    least_spread: Annotated[float, Field(ge=0)] = Field(
        0.01, description="Largest minus smallest reward of a group that is kept."
    )


class SampleThing:
    """Drops groups whose rewards are nearly equal, since they have almost no advantage."""

    def __init__(self, config: SampleThingConfig, context: ComponentContext) -> None:
        self._least = config.least_spread

    def accept(self, group: GroupSummary) -> Verdict:
        """Whether the rewards differ enough."""
        if float(group.rewards.max() - group.rewards.min()) < self._least:
            return Verdict(False, "rewards nearly equal")
        return Verdict(True)
