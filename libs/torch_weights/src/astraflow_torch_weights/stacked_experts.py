"""What a transformers model holds, by the names of its checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from astraflow_torch_weights.images import reads_images

_STACKED = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
"""Parameter with a matrix of each expert → the matrices that are stacked in it, in order."""
_MIXTRAL = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
"""Its own names for these; a layer's experts and their router are its ``block_sparse_moe``."""


def as_checkpoint(model: Any) -> dict[str, torch.Tensor]:
    """The parameters and buffers of ``model``: transformers stacks the experts of a layer, each of which is a separate
    tensor in a checkpoint. The tensors are views."""
    held = model.state_dict(keep_vars=True)
    if reads_images(model.config):
        return {_renamed(model, name): tensor for name, tensor in held.items()}
    found = _apart(held)
    if model.config.model_type != "mixtral":
        return found
    return {_of_mixtral(name): tensor for name, tensor in found.items()}


def _apart(held: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
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


def _renamed(model: Any, name: str) -> str:
    """The name of a tensor in a checkpoint of a model whose parts transformers only calls otherwise."""
    from transformers.core_model_loading import revert_weight_conversion

    nothing = torch.empty(0, device="meta")
    (found,) = revert_weight_conversion(model, {name: nothing})
    return str(found)


def _of_mixtral(name: str) -> str:
    parts = name.replace(".mlp.", ".block_sparse_moe.").split(".")
    return ".".join(_MIXTRAL.get(part, part) for part in parts)
