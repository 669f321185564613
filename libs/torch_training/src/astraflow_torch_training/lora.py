"""Low-rank adapters on the linear layers of a model (Hu et al. 2021, arXiv:2106.09685)."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from astraflow_core.errors import UserError
from astraflow_torch_training.config import TrainingConfig

Full = Callable[[torch.Tensor], torch.Tensor]


class LoraLinear(torch.nn.Linear):
    """``x W' + b + s (x A') B'`` with the ``weight`` W and ``bias`` b of ``base`` frozen. ``lora_A`` ``[r, in]`` starts
    uniform as PEFT's does, ``lora_B`` ``[out, r]`` at 0, so that the layer starts as it was."""

    def __init__(self, base: torch.nn.Linear, rank: int, scale: float) -> None:
        super().__init__(base.in_features, base.out_features, bias=False, device="meta")
        self.weight, self.bias = base.weight, base.bias
        device = base.weight.device
        # Drawn on the CPU, so that a seed gives the same adapter on every device.
        start = torch.empty(
            rank, base.in_features, device="meta" if device.type == "meta" else "cpu"
        )
        torch.nn.init.kaiming_uniform_(start, a=math.sqrt(5))
        self.lora_A = torch.nn.Parameter(start.to(device))
        self.lora_B = torch.nn.Parameter(torch.zeros(base.out_features, rank, device=device))
        self.scale, self.enabled = scale, True

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The layer, with its adapter if it is on."""
        output = super().forward(input)
        if not self.enabled:
            return output
        low = torch.nn.functional.linear(input, self.lora_A)
        return output + self.scale * torch.nn.functional.linear(low, self.lora_B)

    def merged(self, full: Full) -> torch.Tensor:
        """``W + s B A``, whole; ``full`` as for :func:`astraflow_torch_training.export.named_tensors`."""
        weight, low, high = (full(t.detach()) for t in (self.weight, self.lora_A, self.lora_B))
        return torch.addmm(weight, high, low, alpha=self.scale)


def with_adapters(whole: Any, config: TrainingConfig) -> None:
    """Freeze a transformers model and put an adapter of scale ``lora_alpha / lora_rank`` on every linear layer whose
    last name is among ``lora_targets``; :class:`UserError` if one of these names no such layer."""
    rank, targets = config.lora_rank, config.lora_targets
    whole.requires_grad_(False)
    found = {
        name: module
        for name, module in whole.named_modules()
        if isinstance(module, torch.nn.Linear) and name.rpartition(".")[2] in targets
    }
    if missing := set(targets) - {name.rpartition(".")[2] for name in found}:
        layers = sorted(
            {
                name.rpartition(".")[2]
                for name, module in whole.named_modules()
                if isinstance(module, torch.nn.Linear)
            }
        )
        raise UserError(
            f"lora_targets: {type(whole).__name__} has no linear layers {', '.join(sorted(missing))}; it has "
            f"{', '.join(layers)}"
        )
    for name, module in found.items():
        parent, _, last = name.rpartition(".")
        setattr(whole.get_submodule(parent), last, LoraLinear(module, rank, config.lora_scale))


@contextlib.contextmanager
def adapters_off(whole: Any) -> Iterator[None]:
    """The model without its adapters: what it was before training."""
    layers = [module for _, module in adapted(whole)]
    for layer in layers:
        layer.enabled = False
    try:
        yield
    finally:
        for layer in layers:
            layer.enabled = True


def adapted(whole: Any) -> Iterator[tuple[str, LoraLinear]]:
    """The layers with an adapter, by name."""
    for name, module in whole.named_modules():
        if isinstance(module, LoraLinear):
            yield name, module
