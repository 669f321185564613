"""The keys of the trainer ``torch``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from astraflow_torch_training.config import TrainingConfig


class TorchTrainerConfig(TrainingConfig):
    """``trainer = { use = "torch", … }``"""

    optimizer: Literal["adamw", "muon", "adamw8bit"] = Field(
        "adamw",
        description="'muon': on the matrices of the layers, its steps as large as AdamW's at the same lr; AdamW on the "
        "rest. 'adamw8bit': moments in 8 bits, with torchao.",
    )
    compile: bool = Field(
        False,
        description="Compile the model (torch.compile): a slow start, then faster on CUDA.",
    )
    offload_weights: bool = Field(
        False,
        description="With [run] colocated: while the engines work, keep the weights in host memory too, not "
        "only the optimizer's state.",
    )
