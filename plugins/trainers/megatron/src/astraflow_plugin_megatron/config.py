"""The keys of the trainer ``megatron``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from astraflow_core.config.models import PositiveInt
from astraflow_torch_training.config import AdapterKeys


class MegatronConfig(AdapterKeys):
    """``trainer = { use = "megatron", … }``"""

    device: Literal["cuda", "cpu"] = Field(
        "cuda",
        description="'cpu' is for tests: it stands in for the CUDA calls of Megatron-Core, and is refused "
        "where torch finds a CUDA device.",
    )
    tensor_parallel: PositiveInt = Field(
        1, description="Ranks that share each matrix; a divisor of the key-value heads."
    )
    sequence_parallel: bool = Field(
        False,
        description="The ranks of tensor_parallel share the activations between matrices (norms, residuals) by "
        "positions: less memory for activations, the same traffic.",
    )
    pipeline_parallel: PositiveInt = Field(
        1, description="Ranks that share the layers (1F1B schedule); a divisor of their number."
    )
    expert_parallel: PositiveInt = Field(
        1,
        description="Replicas that share the experts of each layer; a divisor of the number of replicas and of "
        "that of experts.",
    )
    threads: PositiveInt = Field(1, description="Number of torch threads on CPU.")
    compute_dtype: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="Data type of the model; with 'bfloat16' gradients are summed in float32 and the "
        "optimizer holds float32 weights.",
    )
    publish_dtype: Literal["float32", "bfloat16"] = Field(
        "bfloat16", description="Data type of published versions and of the final model."
    )
    publish: Literal["auto", "sharded", "gathered"] = Field(
        "auto",
        description="Who publishes the weights: each rank its own part ('sharded'), or rank 0, which gathers "
        "them tensor by tensor ('gathered'); 'auto': each rank if the transport supports it.",
    )
    reference_model: Path | None = Field(
        None,
        description="Hugging Face folder of the reference model, of the same vocabulary: a teacher. Default: "
        "the initial model.",
    )
    micro_batch_tokens: PositiveInt | None = Field(
        None,
        description="Tokens of one forward pass, padding included; a longer row is processed alone. Default: 2048 "
        "on CPU, 16384 on CUDA.",
    )
    gradient_checkpointing: bool = Field(
        False, description="Recompute each layer in the backward pass: less memory, more time."
    )

    value_lr_scale: Annotated[float, Field(gt=0)] = Field(
        10.0,
        description="The learning rate of the value head, for algorithms with a critic, over lr.",
    )

    @model_validator(mode="after")
    def _a_sequence_to_share(self) -> Self:
        if self.sequence_parallel and self.tensor_parallel == 1:
            raise ValueError(
                "sequence_parallel: the positions are shared by the ranks of tensor_parallel, which is 1; set it "
                "to 2 or more, or remove sequence_parallel"
            )
        return self

    @model_validator(mode="after")
    def _publishes_what_it_computes_with(self) -> Self:
        if self.compute_dtype == "bfloat16" and self.publish_dtype == "float32":
            raise ValueError(
                "publish_dtype = 'float32' needs compute_dtype = 'float32': a bfloat16 model has no more "
                "digits to publish"
            )
        return self
