"""The keys of engine ``sglang``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from astraflow_core.config.models import ConfigModel, PositiveInt, Seconds


class SGLangConfig(ConfigModel):
    """``engine = { use = "sglang", url = "http://HOST:PORT", … }``"""

    url: Annotated[str, Field(pattern=r"^https?://")] = Field(
        description="The server, started for this engine alone; it must see our paths."
    )
    max_batch: PositiveInt = Field(
        default=256, description="Most sequences at the server; others wait here."
    )
    context_length: PositiveInt | None = Field(
        default=None, description="Most tokens of a sequence; default: what the model allows."
    )
    keep: Literal["in_place", "retract"] = Field(
        default="in_place",
        description="What a pause that keeps requests does with their keys and values: leave them, or "
        "compute them anew, with the weights of then.",
    )
    control_deadline_s: Seconds = Field(
        default=100.0, description="Longest that a pause, an update or another call may take."
    )
    stall_deadline_s: Seconds = Field(
        default=120.0,
        description="Longest that running requests may sample nothing before the server counts as hung.",
    )
