"""Keys of the workflow and of the prompt source."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from astraflow_core.config.models import ConfigModel, PositiveInt
from astraflow_core.config.or_none import OrNone
from astraflow_gateway.listening_keys import GatewayKeys

Seconds = Annotated[float, Field(gt=0)]


class OnlineConfig(GatewayKeys):
    """``[workflow] use = "online"``"""

    token_env: OrNone[str] = Field(
        None,
        description="Environment variable of each RaaS with the token that opens and rewards episodes; 'none': one "
        "is made, in RUN/online/token.",
    )
    wait_s: Seconds = Field(
        30.0, description="Seconds for which a slot waits for an episode before it is leased anew."
    )
    idle_s: Seconds = Field(
        60.0, description="Seconds without a request or a reward after which an episode is over."
    )
    deadline_s: Seconds = Field(
        80.0,
        description="Seconds after which an episode is over; wait_s and deadline_s have to fit into [run] "
        "episode_deadline_s.",
    )
    max_calls: PositiveInt = Field(
        200,
        description="Maximum requests per episode; further ones are rejected because the budget is spent.",
    )
    max_tokens: PositiveInt = Field(
        100_000, description="Maximum sampled tokens per episode, after which the budget is spent."
    )
    max_untrained: Annotated[int, Field(ge=0)] = Field(
        0,
        description="Episodes at a time, beyond the slots that are free, that are answered and not trained; 0: they "
        "are refused (503).",
    )


class ArrivalsConfig(ConfigModel):
    """``[prompts] use = "arrivals"``"""

    size: PositiveInt = Field(100_000, description="Prompts of an epoch.")
