"""The keys that trainers based on PyTorch share; each adds its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from astraflow_core.config.models import ConfigModel, PositiveInt

LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
Fraction = Annotated[float, Field(ge=0, le=1)]
Beta = Annotated[float, Field(ge=0, lt=1)]
NotNegative = Annotated[float, Field(ge=0)]


class OptimizerKeys(ConfigModel):
    """AdamW and a schedule."""

    lr: NotNegative = Field(1e-6, description="Peak learning rate.")
    betas: tuple[Beta, Beta] = Field((0.9, 0.999), description="AdamW.")
    eps: Annotated[float, Field(gt=0)] = Field(1e-8, description="AdamW.")
    weight_decay: NotNegative = Field(
        0.0, description="AdamW, on matrices only: not on embeddings, norms and biases."
    )
    max_grad_norm: NotNegative = Field(
        1.0, description="Maximum gradient norm; 0 disables clipping."
    )
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant",
        description="Schedule of the learning rate from the end of the warm-up to the end of the run.",
    )
    warmup_steps: Annotated[int, Field(ge=0)] = Field(
        0, description="Optimizer steps of linear warm-up."
    )
    min_lr_ratio: Fraction = Field(0.0, description="Final learning rate as a share of lr.")


class AdapterKeys(OptimizerKeys):
    """Keys for adapters that are trained instead of the weights, in addition to optimizer and schedule."""

    lora_rank: Annotated[int, Field(ge=0)] = Field(
        0,
        description="Rank of LoRA adapters that are trained instead of the weights and published; 0: no adapters.",
    )
    lora_alpha: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Scale of the adapters times lora_rank. Default: twice lora_rank."
    )
    lora_targets: tuple[str, ...] = Field(
        LAYERS, description="Last name components of the linear layers that get an adapter."
    )

    @property
    def lora_scale(self) -> float:
        """The factor of the adapters' outputs."""
        return (self.lora_alpha or 2.0 * self.lora_rank) / self.lora_rank


class TrainingConfig(AdapterKeys):
    """Keys for model and layout, in addition to optimizer and schedule."""

    device: str = Field(
        "auto", description="'cpu', 'cuda', 'cuda:1' …; 'auto' selects CUDA if available."
    )
    threads: PositiveInt = Field(1, description="Number of torch threads on CPU.")
    compute_dtype: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="Data type of matrix products (autocast); weights and optimizer stay float32.",
    )
    publish_dtype: Literal["float32", "bfloat16"] = Field(
        "bfloat16", description="Data type of published versions and of the final model."
    )
    reference_model: Path | None = Field(
        None,
        description="Hugging Face folder of the reference model, of the same vocabulary: a teacher. Default: "
        "the initial model.",
    )
    attention: Literal["auto", "sdpa", "eager", "flash_attention_2", "flex_attention"] = Field(
        "auto",
        description="'auto': flash_attention_2 on CUDA if flash-attn is installed and compute_dtype is "
        "bfloat16, else sdpa. flex_attention, on CUDA: trees without a mask of all pairs of tokens.",
    )
    layout: Literal["auto", "bucketed", "packed", "tree"] = Field(
        "auto",
        description="Rows of similar length padded to the longest, packed end to end, or as trees in which tokens that "
        "rows share at their beginning are computed once; 'auto': packed with flash_attention_2, else the trainer's choice.",
    )
    micro_batch_tokens: PositiveInt | None = Field(
        None,
        description="Tokens of one forward pass, padding included; a longer row is processed alone. Default: 2048 "
        "on CPU, 16384 on CUDA.",
    )
    gradient_checkpointing: bool = Field(
        False, description="Recompute each layer in the backward pass: less memory, more time."
    )
    critic: Literal["head", "model"] = Field(
        "head",
        description="For algorithms with a critic: a linear head on the policy's backbone, which it also "
        "trains, or a separate model.",
    )
    critic_model: Path | None = Field(
        None,
        description="Hugging Face folder from which critic = 'model' starts, of the same vocabulary. "
        "Default: the initial model.",
    )
    value_lr_scale: Annotated[float, Field(gt=0)] = Field(
        10.0, description="The critic's learning rate over lr."
    )

    @model_validator(mode="after")
    def _flash_attention_has_no_float32(self) -> Self:
        if self.attention == "flash_attention_2" and self.compute_dtype == "float32":
            raise ValueError('attention = "flash_attention_2" needs compute_dtype = "bfloat16"')
        return self

    @model_validator(mode="after")
    def _flash_attention_takes_no_mask(self) -> Self:
        if self.attention == "flash_attention_2" and self.layout == "tree":
            raise ValueError(
                'layout = "tree" needs a mask, which attention = "flash_attention_2" does not take; leave attention = "auto", or set "flex_attention"'
            )
        return self

    @model_validator(mode="after")
    def _a_critic_to_start(self) -> Self:
        if self.critic_model is not None and self.critic == "head":
            raise ValueError("critic_model is read with critic = 'model' only")
        return self
