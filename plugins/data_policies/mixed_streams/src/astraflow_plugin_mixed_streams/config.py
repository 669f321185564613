"""The keys of the data policy ``mixed_streams``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from astraflow_core.config.models import ConfigModel, Name


class MixedStreamsConfig(ConfigModel):
    """``[policies.verifier] data = [{ use = "mixed_streams", source = "solver", ratio = 0.3 }]``"""

    source: Name = Field(description="Policy of the run whose accepted rows are borrowed.")
    ratio: Annotated[float, Field(ge=0, le=1)] = Field(
        0.5,
        description="Share of a batch that is borrowed, if available. 1: the stream is shared wholly, batches "
        "are the source's rows only, and its own sequences are not trained on.",
    )
    max_age: Annotated[int, Field(ge=0)] | None = Field(
        None,
        description="Most versions that a borrowed row may be behind the source's newest one, which the source's "
        "trainer updates; default, and at most: the run's max_staleness.",
    )
