"""The keys of the transport."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from astraflow_weights.connection_keys import FetchingKeys, ListeningKeys


class CollectiveConfig(ListeningKeys, FetchingKeys):
    """Keys of ``transport = { use = "collective" }``."""

    backend: Literal["auto", "gloo", "nccl"] = Field(
        "auto", description="'auto': nccl if the trainer has CUDA, else gloo; engines follow."
    )
    window_s: Annotated[float, Field(gt=0)] = Field(
        2.0,
        description="How long a version waits for engines to join; it ends early once all engines of "
        "the previous version have joined.",
    )
    deadline_s: Annotated[float, Field(gt=0)] = Field(
        30.0, description="Maximum duration of the rendezvous and the broadcast of one version."
    )
    bucket_mb: Annotated[int, Field(ge=1, le=4096)] = Field(
        64, description="MiB that are broadcast at once; a larger tensor is sent alone."
    )
