"""The keys of the transport."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from astraflow_weights.connection_keys import FetchingKeys


class CudaIpcConfig(FetchingKeys):
    """Keys of ``transport = { use = "cuda_ipc" }``."""

    device: Annotated[int, Field(ge=0)] = Field(
        0, description="Number of the GPU, as the trainer's process sees it."
    )
    bucket_mb: Annotated[int, Field(ge=1, le=4096)] = Field(
        256, description="MiB of a buffer on the GPU; a larger tensor has one of its own."
    )
    lease_s: Annotated[float, Field(gt=0)] = Field(
        60.0, description="How long memory is kept for an engine that no longer responds."
    )
