"""The keys of the transport."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from astraflow_weights.connection_keys import HttpKeys


class DeltaConfig(HttpKeys):
    """Keys of ``transport = { use = "delta" }``."""

    history: Annotated[int, Field(ge=1, le=64)] = Field(
        16,
        description="Number of versions from which a receiver can catch up by deltas, as long as all deltas "
        "together are smaller than the model.",
    )
    kernel: Literal["auto", "numba", "numpy"] = Field(
        "auto",
        description="Implementation that encodes the blocks; auto: numba if it is installed.",
    )
