"""The keys of the trainer ``fsdp``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from astraflow_core.config.models import PositiveInt
from astraflow_torch_training.config import TrainingConfig


class FsdpConfig(TrainingConfig):
    """``trainer = { use = "fsdp", … }``"""

    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto",
        description="'auto' takes CUDA if present; there each rank has the device of its number on the host.",
    )
    compute_dtype: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="Of gathered weights and activations; shards, sums of gradients and optimizer stay "
        "float32.",
    )
    reduce: Literal["last", "each"] = Field(
        "last",
        description="When gradients are summed over ranks: after the 'last' micro-batch of a step, which "
        "holds a whole gradient on each rank until then, or after 'each', which holds a shard only.",
    )
    replicas: PositiveInt = Field(
        1,
        description="Whole copies of the model (HSDP): each is sharded over ranks / replicas neighbouring "
        "ranks.",
    )
    publish: Literal["auto", "sharded", "gathered"] = Field(
        "auto",
        description="Who publishes the weights: each rank what it holds ('sharded'), or rank 0 what it gathers one "
        "tensor after the other ('gathered'); 'auto': each rank, where the transport allows it.",
    )
