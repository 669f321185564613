"""Adapters on their way in: those of a published version, for a trainer that continues with them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from astraflow_core.errors import UserError
from astraflow_torch_training.export import PEFT_PREFIX
from astraflow_torch_training.lora import adapted

ADAPTER_FILE = "adapter_model.safetensors"


def given_adapters(whole: Any, file: Path) -> dict[str, torch.Tensor]:
    """Float32 tensors for the adapters of ``whole``, by their names in it, of which
    :func:`astraflow_torch_training.export.export_adapters` makes those in ``file``, to the bit. Raises
    :class:`UserError` if ``file`` has others."""
    try:
        held = load_file(file)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{file} is not a file of adapters: {error}") from error
    found = {}
    for name, layer in adapted(whole):
        for part in ("lora_A", "lora_B"):
            tensor = held.pop(saved := f"{PEFT_PREFIX}{name}.{part}.weight", None)
            wanted = tuple(getattr(layer, part).shape)
            if tensor is None or tuple(tensor.shape) != wanted:
                there = "absent" if tensor is None else list(tensor.shape)
                raise UserError(f"{file}: {saved} is {there}, the trained one {list(wanted)}")
            tensor = tensor.float()
            found[f"{name}.{part}"] = tensor if part == "lora_A" else unscaled(tensor, layer.scale)
    if held:
        raise UserError(f"{file} has tensors of no trained layer: {', '.join(sorted(held)[:3])}")
    return found


def unscaled(scaled: torch.Tensor, scale: float) -> torch.Tensor:
    """The float32 tensor that times ``scale`` is ``scaled`` to the bit: the quotient, or a neighbour of it."""
    quotient = scaled / scale
    found = quotient
    for end in (-math.inf, math.inf):
        other = torch.nextafter(quotient, torch.full_like(quotient, end))
        found = torch.where((found * scale != scaled) & (other * scale == scaled), other, found)
    return found
