"""Low-rank adapters on the linear layers of a model (Hu et al. 2021, arXiv:2106.09685)."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from astraflow_core.errors import UserError
from astraflow_core.types import ExportedTensor
from astraflow_torch_training.export import PublishDtype, exported_tensor

A, B = "lora_A", "lora_B"
PEFT_PREFIX = "base_model.model."


class LoraLinear(torch.nn.Linear):
    """``x W' + b + s (x A') B'`` with the ``weight`` W and ``bias`` b of ``base`` frozen. ``lora_A`` ``[r, in]`` starts
    uniform as PEFT's does, ``lora_B`` ``[out, r]`` at 0, so that the layer starts as it was."""

    def __init__(self, base: torch.nn.Linear, rank: int, scale: float) -> None:
        super().__init__(base.in_features, base.out_features, bias=False, device="meta")
        self.weight, self.bias = base.weight, base.bias
        device = base.weight.device
        self.lora_A = torch.nn.Parameter(torch.empty(rank, base.in_features, device=device))
        self.lora_B = torch.nn.Parameter(torch.zeros(base.out_features, rank, device=device))
        torch.nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        self.scale, self.enabled = scale, True

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The layer, with its adapter if it is on."""
        output = super().forward(input)
        if not self.enabled:
            return output
        low = torch.nn.functional.linear(input, self.lora_A)
        return output + self.scale * torch.nn.functional.linear(low, self.lora_B)

    def merged(self) -> torch.Tensor:
        """``W + s B A``."""
        return torch.addmm(self.weight.detach(), self.lora_B, self.lora_A, alpha=self.scale)


def with_adapters(whole: Any, rank: int, alpha: float, targets: Sequence[str]) -> None:
    """Freeze a transformers model and put an adapter of scale ``alpha / rank`` on every linear layer whose last
    name is among ``targets``; :class:`UserError` if one of these names no such layer."""
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
        setattr(whole.get_submodule(parent), last, LoraLinear(module, rank, alpha / rank))


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


def export_adapters(whole: Any, dtype: PublishDtype) -> Iterator[ExportedTensor]:
    """The adapters under PEFT's names, one matrix at a time, the scale folded into B."""
    kind = {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]
    for name, layer in adapted(whole):
        for part, tensor in ((A, layer.lora_A), (B, layer.lora_B * layer.scale)):
            yield exported_tensor(f"{PEFT_PREFIX}{name}.{part}.weight", tensor.detach().to(kind))


@contextlib.contextmanager
@torch.no_grad()
def merged(whole: Any) -> Iterator[None]:
    """Within, the weights are those of the model with its adapters merged in; afterwards bitwise what they
    were.."""
    before = {name: layer.weight.data for name, layer in adapted(whole)}
    try:
        for _, layer in adapted(whole):
            layer.weight.data = layer.merged()
        yield
    finally:
        for name, layer in adapted(whole):
            layer.weight.data = before[name]
