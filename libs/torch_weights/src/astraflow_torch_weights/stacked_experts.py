"""What a transformers model holds, by the names of its checkpoints."""

from __future__ import annotations

from collections.abc import Mapping

import torch

_STACKED = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
"""Parameter with a matrix of each expert → the matrices that these are made of, one above the other."""


def as_checkpoint(held: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What a model holds, by the names of its checkpoints: transformers stacks the experts of a layer, of which each
    has a tensor of its own there. The tensors are views."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in held.items():
        layer, _, part = name.rpartition(".")
        if not layer.endswith(".experts") or part not in _STACKED:
            found[name] = tensor
            continue
        for expert, rows in enumerate(tensor.detach()):
            parts = zip(_STACKED[part], rows.chunk(len(_STACKED[part])), strict=True)
            found |= {f"{layer}.{expert}.{each}.weight": view for each, view in parts}
    return found
