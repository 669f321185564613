"""The keys of the trainer ``torch``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from astraflow_torch_training.config import TrainingConfig

LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class TorchTrainerConfig(TrainingConfig):
    """``trainer = { use = "torch", … }``"""

    optimizer: Literal["adamw", "muon"] = Field(
        "adamw",
        description="'muon': on the matrices of the layers, its steps as large as AdamW's at the same lr; AdamW on the "
        "rest.",
    )
    compile: bool = Field(
        False,
        description="Compile the model (torch.compile): a slow start, then faster on CUDA.",
    )
    lora_rank: Annotated[int, Field(ge=0)] = Field(
        0,
        description="Rank of adapters that are trained in the place of the weights; 0: none. What is published is "
        "the adapter.",
    )
    lora_alpha: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Scale of the adapters times lora_rank. Default: twice lora_rank."
    )
    lora_targets: tuple[str, ...] = Field(
        LAYERS, description="Last names of the linear layers that get an adapter."
    )
