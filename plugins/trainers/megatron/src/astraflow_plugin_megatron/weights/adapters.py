"""Low-rank adapters (Hu et al. 2021, arXiv:2106.09685) on the linear layers of a policy, which is frozen.

Megatron-Core keeps queries, keys and values in one matrix, and gates and ups in another. Each of them gets its own adapter
here, as it does under PEFT's names; their products with A are computed at once.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
    set_tensor_model_parallel_attributes,
)

from astraflow_core.errors import UserError
from astraflow_core.seeds import derive_seed
from astraflow_plugin_megatron.architecture import Architecture
from astraflow_plugin_megatron.config import MegatronConfig
from astraflow_plugin_megatron.ranks import Mesh
from astraflow_plugin_megatron.weights.mapping import (
    ADAPTERS,
    HALVES,
    Packing,
    adapters_of,
    entries,
    linear_layers,
    pack,
)


class Adapter(torch.nn.Module):
    """``lora_A`` ``[r, in]`` and ``lora_B`` ``[out, r]`` of one layer, or what a tensor parallel rank holds of them."""

    def __init__(self, low: torch.Tensor, high: torch.Tensor) -> None:
        super().__init__()
        self.lora_A, self.lora_B = torch.nn.Parameter(low), torch.nn.Parameter(high)


class ModuleAdapters(torch.nn.ModuleDict):
    """Those of the layers that are together in one module of Megatron-Core, to whose output they add
    ``scale · x A' B'``. ``widths`` are the outputs of all its layers here, those without an adapter too."""

    def __init__(
        self,
        found: dict[str, Adapter],
        widths: dict[str, int],
        packing: Packing,
        groups: int,
        scale: float,
        tensor_group: dist.ProcessGroup,
        sequence_parallel: bool,
    ) -> None:
        super().__init__(found)
        self._widths, self._packing, self._groups = widths, packing, groups
        self._scale, self._group = scale, tensor_group
        self._sequence_parallel = sequence_parallel
        self.enabled = True
        split, whole = HALVES if packing == "columns" else HALVES[::-1]
        for adapter in found.values():
            shared = getattr(adapter, split)
            set_tensor_model_parallel_attributes(shared, True, int(packing == "columns"), 1)
            # Computed from a rank's own positions only, where these are shared.
            getattr(adapter, whole).sequence_parallel = sequence_parallel

    def add(self, module: Any, given: tuple[torch.Tensor, ...], output: Any) -> Any:
        """The ``output`` (product, bias) of the ``module``, with what the adapters add: a forward hook."""
        if not self.enabled:
            return output
        product, bias = output
        columns = self._packing == "columns"
        added = self._rows(given[0]) if columns else self._parts(_normed(module, given[0]))
        return product + added, bias

    def _found(self) -> Sequence[Any]:
        return list(self.values())

    def _rows(self, local: torch.Tensor) -> torch.Tensor:
        """Of a module each rank of which has a part of the inputs."""
        (adapter,) = self._found()
        low = torch.nn.functional.linear(local, adapter.lora_A)
        if self._sequence_parallel:
            low = reduce_scatter_to_sequence_parallel_region(low, group=self._group)
        else:
            low = reduce_from_tensor_model_parallel_region(low, group=self._group)
        return self._scale * torch.nn.functional.linear(low, adapter.lora_B)

    def _parts(self, hidden: torch.Tensor) -> torch.Tensor:
        """Of a module each rank of which has a part of the outputs."""
        every = self._found()
        low = torch.nn.functional.linear(hidden, torch.cat([one.lora_A for one in every]))
        if self._sequence_parallel:
            low = gather_from_sequence_parallel_region(low, group=self._group)
        else:
            low = copy_to_tensor_model_parallel_region(low, group=self._group)
        lows = dict(zip(self.keys(), low.chunk(len(every), -1), strict=True))
        parts = []
        for name, width in self._widths.items():
            if name in lows:
                adapter: Any = self[name]
                part = torch.nn.functional.linear(lows[name], adapter.lora_B)
            else:
                part = low.new_zeros(*low.shape[:-1], width)
            parts.append(part.view(*part.shape[:-1], self._groups, -1))
        return self._scale * torch.cat(parts, -1).flatten(-2)


def _normed(module: Any, hidden: torch.Tensor) -> torch.Tensor:
    """TransformerEngine has the norm before a module within it."""
    weight = getattr(module, "layer_norm_weight", None)
    if weight is None:
        return hidden
    return torch.nn.functional.rms_norm(hidden, weight.shape, weight, module.eps)


def check_targets(arch: Architecture, targets: Sequence[str]) -> None:
    """Raises :class:`UserError` if one of them names no linear layer outside experts."""
    known = {layer.target for e in entries(arch, 1) if e.part is None for layer in linear_layers(e)}
    if missing := set(targets) - known:
        where = "" if arch.experts is None else " outside its experts"
        raise UserError(
            f"lora_targets: the model has no linear layers {', '.join(sorted(missing))}{where}; it has "
            f"{', '.join(sorted(known))}"
        )


def with_adapters(
    model: Any, arch: Architecture, config: MegatronConfig, mesh: Mesh, seed: int
) -> None:
    """Freeze this rank's part of a model and put adapters of scale ``lora_alpha / lora_rank`` on its layers named in
    ``lora_targets``."""
    model.requires_grad_(False)
    for entry in entries(arch, mesh.layout.pipeline):
        layers = linear_layers(entry)
        chosen = [layer for layer in layers if layer.target in config.lora_targets]
        if entry.stage != mesh.stage or not chosen:
            continue
        module = model.get_submodule(entry.names[0].rpartition(".")[0])
        found = {}
        for layer in chosen:
            starts = initial(layer.name, config.lora_rank, layer.shape, seed)
            shares = (
                pack(half.packing, [start], arch, mesh.tensor_rank, mesh.layout.tensor)
                for half, start in zip(
                    adapters_of(entry, layer, config.lora_rank), starts, strict=True
                )
            )
            found[layer.target] = Adapter(*(share.to(module.weight, copy=True) for share in shares))
        adapters = ModuleAdapters(
            found,
            {layer.target: layer.shape[0] // mesh.layout.tensor for layer in layers},
            entry.packing,
            arch.groups // mesh.layout.tensor if entry.packing == "qkv" else 1,
            config.lora_scale,
            mesh.tensor_group,
            config.sequence_parallel,
        )
        module.add_module(ADAPTERS, adapters)
        module.register_forward_hook(adapters.add)


def initial(
    layer: str, rank: int, shape: tuple[int, int], seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the adapter of a ``layer`` of ``shape`` [out, in] starts, whatever the layout of ranks: A uniform as PEFT's
    does, B at 0."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "adapter", layer))
    low, high = torch.empty(rank, shape[1]), torch.zeros(shape[0], rank)
    torch.nn.init.kaiming_uniform_(low, a=math.sqrt(5), generator=generator)
    return low, high


@contextlib.contextmanager
def adapters_off(model: torch.nn.Module) -> Iterator[None]:
    """The model without its adapters: what it was before training."""
    found = [module for module in model.modules() if isinstance(module, ModuleAdapters)]
    for adapters in found:
        adapters.enabled = False
    try:
        yield
    finally:
        for adapters in found:
            adapters.enabled = True
