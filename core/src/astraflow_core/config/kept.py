"""The tables of the state that a run keeps in order to resume."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from astraflow_core.config.strict import ConfigModel, PositiveInt


class CheckpointTable(ConfigModel):
    """``[checkpoint]``"""

    every: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="Updates between checkpoints; 0: only at the end. With a value above 0, a killed trainer continues "
        "from the last checkpoint.",
    )
    recover: bool = Field(
        default=True,
        description="A killed trainer without a usable checkpoint continues with the weights of the newest version that a "
        "RaaS, or the store of the transport, still has; needs trainer capability adopt.",
    )
    keep: PositiveInt = Field(default=2, description="Number of newest checkpoints to keep.")


class JournalTable(ConfigModel):
    """``[journal]``"""

    enabled: bool = Field(default=True, description="Keep a log of groups, batches and versions.")
    record_mb: Annotated[int, Field(ge=0, description="Megabytes of trained groups kept.")] = 0
