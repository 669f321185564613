"""The keys of the trainer ``fsdp``."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

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
        description="Data type of gathered weights and activations; shards, sums of gradients and optimizer "
        "stay float32.",
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
        description="Who publishes the weights: each rank its own part ('sharded'), or rank 0, which gathers "
        "them tensor by tensor ('gathered'); 'auto': each rank if the transport supports it.",
    )
    tensor_parallel: PositiveInt = Field(
        1,
        description="Neighbouring ranks that split the matrices of each layer and compute the same rows; for "
        "layers like those of Qwen3 and Llama.",
    )
    context_parallel: PositiveInt = Field(
        1,
        description="Neighbouring ranks that split the tokens of each row, and attend from their own to all "
        "of them: for long rows, and for layers like those of Qwen3 and Llama.",
    )
    cpu_offload: bool = Field(
        False,
        description="Keep shards, gradients and optimizer in host memory, where the optimizer runs; the device "
        "holds the layer that it computes. For CUDA.",
    )

    @model_validator(mode="after")
    def _parallel_ways_that_fit(self) -> Self:
        if self.context_parallel > 1 and self.layout == "tree":
            raise ValueError(
                'layout = "tree": ranks that share rows by context_parallel cannot share trees; set context_parallel = 1'
            )
        if self.context_parallel > 1 and self.attention not in ("auto", "sdpa"):
            raise ValueError(
                f"attention = {self.attention!r}: ranks that share rows by context_parallel attend by sdpa; leave "
                "attention = 'auto', or set context_parallel = 1"
            )
        return self
