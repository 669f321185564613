"""The keys of the trainer ``torch``."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

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
    batch_invariant: bool = Field(
        False,
        description="Compute in an order that depends on the tokens of a row only, as an engine 'torch' with this key does: their "
        "log-probs are then bitwise equal.",
    )

    @model_validator(mode="after")
    def _batch_invariant_in_float32(self) -> Self:
        if not self.batch_invariant:
            return self
        needed = {
            'compute_dtype = "float32"': self.compute_dtype == "float32",
            'publish_dtype = "float32", since an engine with rounded weights computes other log-probs': self.publish_dtype
            == "float32",
            'attention = "auto"': self.attention == "auto",
            'layout = "bucketed" or "packed" (or "auto", the first)': self.layout != "tree",
            "lora_rank = 0: an engine merges adapters into the weights": not self.lora_rank,
            "compile = false": not self.compile,
        }
        if missing := [text for text, held in needed.items() if not held]:
            raise ValueError(f"batch_invariant needs {'; '.join(missing)}")
        return self
